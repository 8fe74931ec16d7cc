"""Every function that reads bytes of others is fuzzed, and so its cost is measured (tests/fuzz/test_parser_cost.c takes its list from the
fuzzers). What counts as such a function follows from its declaration, so a new one that is not in the list fails here:

    its name has parse, decode, unpack or scan in it and it takes text or bytes, or it takes bytes with their number and has an sl_err

A fuzzer names it, or it is reached as READ_BY says."""

import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
ROOMS = ("base", "eval", "events", "kvstore", "model", "router", "simulate", "sparse", "transport", "worker", "decode", "prefill")

READ_BY = {  # function: the fuzzer in which it runs, or why no bytes of others reach it
    "sl_json_parse_guarded": "http",
    "sl_json_load": "json",
    "sl_yaml_check_depth": "config",
    "sl_calibrated_parse": "channels",
    "sl_cfg_set": "config",
    "sl_oai_load": "openai",
    "sl_chat_parse": "chat_parse",
    "sl_grammar_check": "grammar",
    "sl_grammar_check_bounds": "grammar",
    "sl_drawn_parse": "config",
    "sl_grammar_open": "grammar",
    "tk_regex_compile": "tokenizer_json",
    "rpc_scan": "grpc",
    "rpc_unpack": "grpc",
    "sl_request_spec_set_salt": "openai",
    "sl_read_file": "reads a file whole",
    "sl_synthetic_config": "a name of the command line",
    "sl_http_server_parse": "an URL of the command line or the configuration",
    "sl_chat_format_parse": "a name of the configuration",
    "sl_log_level_parse": "a word of the configuration",
    "sl_parse_bytes": "a value of the configuration: config",
    "sl_option_parse": "a value of the configuration: config",
    "sl_args_parse": "the command line",
    "sl_disk_scan_open": "the pages of a directory: tier_pages, disk",
    "sl_trace_post": "sends bytes",
    "sl_front_job_start": "starts a job of SL_POOL_JOBS, each of which test_pool.c measures",
    "sl_call_begin": "takes a number",
    "lb_rkey_unpack": "a transport of tests",
    "ux_rkey_unpack": "UCX reads it; only from a process that has proved the secret",
    "ux_gate_take": "an address of this process",
    "sl_direct_attach": "a description of fixed size from a worker that has proved the secret (test_direct.c has every length)",
}


def functions():
    """name → header of what reads bytes."""
    found = {}
    for room in ROOMS:
        for path in sorted((ROOT / room).rglob("*.h")):
            text = re.sub(r"/\*.*?\*/", "", path.read_text(), flags=re.S)
            for name, args in re.findall(r"^[a-z][\w \*]*?\b(\w+)\(([^;{}]*?)\);", text, re.M):
                args = re.sub(r"\s+", " ", args)
                sized = re.search(r"const (char|uint8_t|void|unsigned char) \*\w+, (size_t|u?int32_t) \w+", args)
                reads = re.search(r"parse|decode|unpack|scan", name) and re.search(r"const (char|uint8_t|void) \*", args)
                if sized and "sl_err" in args or reads:
                    found[name] = path.relative_to(ROOT)
    return found


def test_every_reader_is_fuzzed():
    fuzzers = {p.stem: p.read_text() for p in (ROOT / "tests/fuzz").glob("*.[ch]")}
    all_of_them, known = functions(), set(re.findall(r"sl_fuzzer\(fuzz_(\w+)", (ROOT / "tests/fuzz/CMakeLists.txt").read_text()))
    assert len(all_of_them) > 50 and len(known) > 30
    source = "\n".join(fuzzers.values())
    missing = [f"{path}: {name}" for name, path in all_of_them.items() if not re.search(rf"\b{name}\(", source) and name not in READ_BY]
    assert not missing, f"no fuzzer reads with these, and READ_BY does not say why: {missing}"
    gone = [name for name in READ_BY if name not in all_of_them]
    assert not gone, gone
    wrong = [(name, by) for name, by in READ_BY.items() if " " not in by and by not in known]
    assert not wrong, wrong


def test_every_thread_of_the_router_is_the_pool_or_listed():
    """Work on bytes of clients runs as a job of SL_POOL_JOBS, because nothing else starts threads or uses libuv's pool, but: the sender of
    traces; the name of the listener, once at the start; names of workers' exporters, of which libuv looks up two at a time at most, so that
    name servers that hang leave threads to the pool."""
    found = sorted({str(p.relative_to(ROOT)) for p in (ROOT / "router").rglob("*.c")
                    if re.search(r"\b(uv_queue_work|pthread_create|uv_thread_create|uv_fs_\w+|uv_getaddrinfo|fork|posix_spawn\w*)\(", p.read_text())})
    assert found == ["router/grpc/h2_socket.c", "router/page/scrape.c", "router/pool.c", "router/trace/exporter.c"], found


def test_every_path_with_a_body_is_measured():
    """Each POST of the table of routes that clients may use is among the inputs of test_pool.c."""
    routes = re.findall(r'\{"(/[^"]*)", "POST", (?:true|false), (\w+), (true|false)', (ROOT / "router/http/routes.c").read_text())
    inputs = (ROOT / "tests/unit/router/test_pool.c").read_text()
    missing = [path for path, run, admins in routes if admins == "false" and run == "http_generate" and f'{{"{path}",' not in inputs]
    assert len(routes) > 10 and not missing, missing
