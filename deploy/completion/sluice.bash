# Completion of bash for sluice. Commands, actions and flags come from the program itself (--help=commands, --help=flags), so
# they are those of the version that is installed.
_sluice() {
    local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD - 1]} program=${COMP_WORDS[0]} words line
    local -a command=()
    COMPREPLY=()
    if [ "$COMP_CWORD" -eq 1 ]; then
        words=$("$program" --help=commands 2>/dev/null | cut -f1)
        mapfile -t COMPREPLY < <(compgen -W "$words" -- "$current")
        return
    fi
    command=("${COMP_WORDS[1]}")
    words=$("$program" "${command[@]}" --help=commands 2>/dev/null | cut -f1)
    if [ -n "$words" ] && [ "$COMP_CWORD" -eq 2 ] && [[ $current != -* ]]; then
        mapfile -t COMPREPLY < <(compgen -W "$words" -- "$current")
        return
    fi
    if [ -n "$words" ] && grep -qxF -- "${COMP_WORDS[2]}" <<<"$words"; then command+=("${COMP_WORDS[2]}"); fi
    words=$("$program" "${command[@]}" --help=flags 2>/dev/null)
    line=$(grep -F -- "$previous"$'\t' <<<"$words" | head -n 1)
    if [[ $previous == --* && -n $line ]]; then
        local choices
        choices=$(cut -f3 <<<"$line")
        if [ -n "$choices" ]; then
            mapfile -t COMPREPLY < <(compgen -W "$choices" -- "$current")
            return
        fi
        if [ -n "$(cut -f2 <<<"$line")" ]; then
            mapfile -t COMPREPLY < <(compgen -f -- "$current")
            return
        fi
    fi
    mapfile -t COMPREPLY < <(compgen -W "$(cut -f1 <<<"$words") --help" -- "$current")
}
complete -o filenames -F _sluice sluice
