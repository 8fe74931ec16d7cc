# Completion of fish for sluice; commands and flags come from the program itself.
function __sluice_words
    set -l words (commandline -opc)
    if test (count $words) -lt 2
        sluice --help=commands 2>/dev/null
    else
        sluice $words[2] --help=flags 2>/dev/null | cut -f1,4
        test (count $words) -eq 2; and sluice $words[2] --help=commands 2>/dev/null
    end
end
complete -c sluice -a '(__sluice_words)'
