#!/usr/bin/env python3
"""Writes the seeds that are made, not found: seeds/TARGET/NAME. Run it after a format has changed, and commit what it writes.

Other files in these folders are reproducers of findings; they stay.

usage: make_seeds.py
"""
import json
import pathlib
import struct

SEEDS = pathlib.Path(__file__).parent / "seeds"

SET, GET, COMPARE_SET, ADD, CHECK, WAIT, REMOVE, LIST_KEYS = 1, 2, 3, 4, 6, 7, 10, 12
SET_WILL, REMOVE_WILL, CANCEL, GOODBYE, REPLY, CLOSING = 17, 18, 19, 20, 64, 65


def write(target, name, content):
    folder = SEEDS / target
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)


def string(text):
    data = text.encode() if isinstance(text, str) else text
    return struct.pack("<I", len(data)) + data


def strings(*texts):
    return struct.pack("<I", len(texts)) + b"".join(map(string, texts))


def frame(op, number, payload):
    return struct.pack("<IBQ", len(payload), op, number) + payload


def request(op, keys=(), values=(), number=0, timeout=0, identity=1):
    return frame(op, identity, struct.pack("<qq", number, timeout) + strings(*keys) + strings(*values))


def rosters():
    write("rosters", "two", "3 1764309931123\n000000000001-host-7 20\n000000000002-host-8 -2\n")
    write("rosters", "first", "1 1\n000000000001-host-7 -1\n")
    write("rosters", "far", "1 1\na 9223372036854775807\nb -9223372036854775808\n")


def packed_records():
    write("packed_records", "seen", "sights-a\n4\nx y\n")
    write("packed_records", "outside", "../a.ddprec\n1\nx")


def etcd_json():
    entry = '{"key":"YQ==","value":"Yg==","create_revision":"1","mod_revision":"2"}'
    write("etcd_json", "read", '\0{"header":{"revision":"7"},"kvs":[' + entry + '],"more":true}')
    write("etcd_json", "commit", '\1{"header":{"revision":"7"},"succeeded":true,"responses":[{"response_range":{"kvs":[' + entry + "]}}]}")
    write("etcd_json", "news", '\2{"result":{"events":[{"type":"DELETE","kv":' + entry + "}]}}")
    write("etcd_json", "base64", "\3YW55IGNhcm5hbCBwbGVhcw==")


def etcd_replica():
    # Nothing loaded; then owner 1 comes, writes a batch, and is buried.
    batch = b"l" + request(SET, ["key"], ["value"])
    write("etcd_replica", "life", bytes([0, 0, 0, 0, 0, 1, 0] + [0, 0, 0, 4, 1, len(batch)]) + batch + bytes([0, 0, 0, 1, 1, 0]))


def tcp_directory():
    write("tcp_directory", "two", bytes([1]) + b"encrypted 1 127.0.0.1 29517\nencrypted 1 ::1 65535")
    write("tcp_directory", "other", bytes([1]) + b"encrypted 1 127.0.0.1 29517\nplain 2 10.0.0.2 1")
    write("tcp_directory", "far", bytes([0]) + b"tls 99999999999 host 65536\n")


def exporter():
    write("exporter", "metrics", "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
    write("exporter", "front", "GET / HTTP/1.0\r\n\r\n")
    write("exporter", "body", "POST /metrics HTTP/1.1\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\nhello")
    write("exporter", "chunks", "PUT / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n")
    write("exporter", "parts", "GET /metrics?a=%41&b HTTP/1.1\r\nRange: bytes=0-0,2-\r\nAccept-Encoding: gzip\r\nX: \x01\r\n\r\n")


def store_frames():
    # The first byte: bytes that come at a time, less one.
    write("store_frames", "set", b"\xff" + request(SET, ["key"], ["value"]))
    write("store_frames", "several", b"\x03" + request(GET, ["a"], timeout=-1) + request(COMPARE_SET, ["a"], ["", "x"]) +
          request(WAIT, ["b", "c"], timeout=1000) + request(CANCEL, number=1))
    write("store_frames", "many_keys", b"\xff" + request(WAIT, ["a", "b"]) + request(CHECK, ["a", "b", "\x01"]))
    write("store_frames", "will", b"\xff" + request(SET_WILL, ["verdict", "rank/0"], ["-10 0 -1 -1 -1 died", "pid 1"]))
    write("store_frames", "reply", b"\xff" + frame(REPLY, 7, struct.pack("<qq", 0, 5) + string("") + strings("value")) +
          frame(REPLY, 8, struct.pack("<qq", -7, 0) + string("key 'x' did not appear") + strings()))
    write("store_frames", "closing", b"\xff" + frame(CLOSING, 0, string("its owner ended it")))
    write("store_frames", "too_long", b"\xff" + struct.pack("<IBQ", (256 << 20) + 1, SET, 1))
    write("store_frames", "too_many", b"\xff" + frame(SET, 1, struct.pack("<qqI", 0, 0, 0xffffffff)))


def step(what, caller, op, keys=(), values=(), number=0, timeout=0):
    """A step of store_state: the caller's number is owner + 4 * request."""
    head = bytes([what, caller, op, len(keys) | len(values) << 2])
    return head + bytes(keys) + bytes(values) + struct.pack("bb", number, timeout)


def store_state():
    steps = [step(0, 4, SET, [0], [3]), step(0, 5, GET, [1], timeout=100), step(0, 9, WAIT, [0, 1], timeout=50),
             step(0, 4, ADD, [1], number=5), step(0, 6, COMPARE_SET, [2], [0, 2]), step(0, 8, WAIT, [2, 3], timeout=-1),
             bytes([230, 0, 20]), bytes([215, 4])]
    write("store_state", "keys", b"\0" + b"".join(steps))
    wills = [step(0, 5, SET_WILL, [0], [3]), step(0, 6, SET_WILL, [1, 2], [1, 2]), step(0, 4, GET, [0], timeout=-1),
             bytes([220, 5]), bytes([220, 6]), step(0, 4, LIST_KEYS, [], [0])]
    write("store_state", "wills", b"\0" + b"".join(wills))
    full = [step(0, 4, SET, [i], [250]) + bytes([200]) + b"x" * 200 for i in range(12)]
    write("store_state", "full", b"\0" + b"".join(full) + step(0, 4, REMOVE, [0]))


def store_replies():
    calls = [bytes([which]) + b"\1a" + b"\1b" + struct.pack("<q", 1) + b"\0\5\0\0\1\1v" for which in range(8)]
    write("store_replies", "all", b"".join(calls))
    write("store_replies", "errors", bytes([1]) + b"\1a\1b" + struct.pack("<q", 0) + b"\xf9\0\0\4text\0")


def environment():
    jobs = {
        "ddprun": "DDP_RANK=1 DDP_WORLD_SIZE=4 DDP_LOCAL_RANK=1 DDP_LOCAL_WORLD_SIZE=2 DDP_STORE=tcp://127.0.0.1:29500 "
                  "DDP_STORE_HOSTED=launcher DDP_RESTART=2 DDP_TIMEOUT_MS=1000",
        "torchrun": "TORCHELASTIC_RUN_ID=x TORCHELASTIC_USE_AGENT_STORE=True TORCHELASTIC_RESTART_COUNT=0 RANK=0 WORLD_SIZE=2 "
                    "LOCAL_RANK=0 LOCAL_WORLD_SIZE=2 MASTER_ADDR=host0 MASTER_PORT=29400",
        "openmpi": "OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=0 OMPI_COMM_WORLD_LOCAL_SIZE=2 "
                   "OMPI_MCA_ess_base_jobid=77",
        "pmi": "PMI_RANK=1 PMI_SIZE=2 MPI_LOCALRANKID=1 MPI_LOCALNRANKS=2 PMI_JOBID=3",
        "slurm": "SLURM_PROCID=3 SLURM_STEP_NUM_TASKS=6 SLURM_LOCALID=1 SLURM_NODEID=1 SLURM_STEP_TASKS_PER_NODE=2(x3) "
                 "SLURM_STEP_NODELIST=n[003-005] SLURM_JOB_ID=12 SLURM_RESTART_COUNT=1",
        "pmix": "PMIX_RANK=0 WORLD_SIZE=2 MPI_LOCALNRANKS=1 SLURM_NODELIST=a,b",
        "kubernetes": "JOB_COMPLETION_INDEX=1 WORLD_SIZE=2 MASTER_ADDR=::1 MASTER_PORT=1",
        "variables": "RANK=0 WORLD_SIZE=1 MASTER_ADDR=localhost MASTER_PORT=65535",
        "no_rank": "WORLD_SIZE=2",
        "bad": "RANK=-1 WORLD_SIZE=x DDP_STORE_HOSTED=me DDP_TIMEOUT_MS=0",
    }
    for name, variables in jobs.items():
        write("environment", name, variables.replace(" ", "\n"))
    for name, text in {"one": "n1", "range": "n[003-007,9],x1", "two": "a[1]b[2-3]", "bad": "n[x]", "open": "n[1"}.items():
        write("slurm_lists", f"hosts_{name}", b"\0" + text.encode())
    for name, text in {"plain": "2,1", "repeated": "2(x3),1", "none": "(x2)", "far": "1(x9223372036854775807)"}.items():
        write("slurm_lists", f"tasks_{name}", b"\3" + text.encode())


def addresses():
    for name, text in {"tcp": "tcp://host:29500", "v6": "tcp://[::1]:0", "file": "file:///tmp/store", "no_port": "tcp://host",
                       "relative": "file://store", "folder": "file:///tmp/", "other": "http://x", "endpoint": "host:1",
                       "endpoint_v6": "[fe80::1%eth0]:65535", "two": "tcp://a:b:1"}.items():
        write("store_uri", name, text)


def file_log():
    first = request(SET, ["key"], ["value"])
    records = first + request(ADD, ["n"], number=2) + request(SET_WILL, ["w"], ["x"], identity=2)

    def log(start, end, generation, owner):
        return b"ddpfile3" + struct.pack("<QQQQ", start, end, generation, owner)
    write("file_log", "good", log(4096, 4096 + len(records), 1, 3) + records)
    write("file_log", "empty", log(4096, 4096, 1, 2))
    write("file_log", "cut", log(4096, 4096 + len(records) + 9, 5, 3) + records)
    write("file_log", "late", log(4096 + len(first), 4096 + len(records), 9, 8) + records)
    write("file_log", "far", log(4096, 1 << 40, 2, 9) + records)
    write("file_log", "same_owner", log(4096, 4096, 1, 1))
    write("file_log", "stranger", b"somebody's thesis")


def plans():
    buckets = [["g"], ["a", "b"], ["c.weight"], ["d\"\\\n"], ["e"], ["f"]]
    write("plan", "good", json.dumps({"libddp_plan": 1, "buckets": buckets}))
    write("plan", "spaces", json.dumps({"buckets": buckets, "libddp_plan": 1}, indent=1))
    for name, change in {"missing": buckets[1:], "twice": buckets + [["a"]], "mixed": [["a", "c.weight"]], "sparse": [["a", "f"]],
                         "ignored": [["h"]], "number": [[1]], "empty": [[]], "nested": [[[["a"]]]]}.items():
        write("plan", name, json.dumps({"libddp_plan": 1, "buckets": change}))
    write("plan", "version", '{"libddp_plan": 2.5e300, "buckets": []}')
    write("plan", "deep", "[" * 200)
    write("plan", "text", "\xff\xfe")


def shard_states():
    def entry(dtype, shape, begin, end):
        return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}

    def seed(name, arrays, elements, **changes):
        metadata = {"format": "libddp-shard", "version": "1", "save": "0123456789abcdef", "rank": "0", "world": "1", "note": "step 7",
                    "shapes": '{"a":[4,6],"b/c@d":[3]}', "checksums": "$C", **changes}
        write("shard_state", name, b"\0" + json.dumps({**arrays, "__metadata__": metadata}).encode() + b"\0" + elements)

    ones = struct.pack("<f", 1) * 64
    both = {"a/m@0": entry("F32", [10], 0, 40), "a/m@10": entry("F32", [14], 40, 96), "b/c@d/v@0": entry("F32", [3], 96, 108)}
    seed("good", both, ones[:108])
    seed("checksum", both, ones[:108], checksums="0" * 16)
    seed("short", both, ones[:100])
    seed("hole", {**both, "a/m@10": entry("F32", [13], 44, 96)}, ones[:108])
    seed("overlap", {**both, "a/m@9": entry("F32", [1], 108, 112)}, ones[:112])
    seed("complex", {**both, "a/z@0": entry("F64", [2, 2], 108, 140)}, ones[:140])
    seed("shape", both, ones[:108], shapes='{"a":[4,9223372036854775807],"b/c@d":[3]}')
    seed("save", both, ones[:108], save="0123456789abcdee")
    seed("empty", {}, b"", shapes="{}", checksums="")
    header = b'{"a/m@0":{},"a/m@0":{}}'
    write("shard_state", "whole_file", b"\1" + struct.pack("<Q", len(header)) + header)


def hook_states():
    def params(**shapes):
        return json.dumps(shapes)

    def header(hook, arrays, numbers, parameters, shared="\n"):
        metadata = {"format": "libddp-hook-state", "version": "1", "hook": hook, "world": "1", "rank": "0", "numbers": json.dumps(numbers),
                    "parameters": parameters, "shared": shared, "bytes": "$B", "checksum": "$C"}
        return json.dumps({**arrays, "__metadata__": metadata}).encode() + b"\0"

    def array(dtype, shape, begin, end):
        return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}
    ones = struct.pack("<f", 1) * 64
    a, b = params(a="f32[4, 6]"), params(a="f32[4, 6]", b="f32[3]")
    write("hook_state", "powersgd", b"\0\x08" + header("powersgd", {
        "error:a": array("F32", [24], 0, 96), "q:a": array("F32", [2, 6], 96, 144)}, {"steps": 3, "rank": 2}, a, "\nq:a\n") + ones[:144])
    write("hook_state", "powersgd_late", b"\0\x08" + header("powersgd", {}, {"steps": (1 << 63) - 1, "rank": 2}, "{}"))
    write("hook_state", "batched", b"\1\x08" + header("batched_powersgd", {
        "error:a": array("F32", [24], 0, 96), "error:b": array("F32", [3], 96, 108), "q0": array("F32", [2, 6], 108, 156)},
        {"steps": 1, "rank": 2}, b, "\nq0\n") + ones[:156])
    write("hook_state", "onebit", b"\2\x08" + header("onebit", {"error:a": array("F32", [24], 0, 96)}, {}, a) + ones[:96])
    write("hook_state", "topk", b"\3\x08" + header("topk", {"error:b": array("F64", [3], 0, 24)}, {}, params(b="f32[3]")) + ones[:24])
    write("hook_state", "fp16", b"\4\x0a" + header("fp16(powersgd)", {}, {"steps": 9, "rank": 1}, "{}"))
    write("hook_state", "local_sgd", b"\5\x08" + header("post_local_sgd", {}, {"steps": 2}, "{}"))
    write("hook_state", "local_sgd_late", b"\5\x08" + header("post_local_sgd", {}, {"steps": (1 << 63) - 1}, "{}"))
    write("hook_state", "allreduce", b"\6\x08" + header("allreduce", {}, {}, "{}"))
    write("hook_state", "chunks", b"\7\x08" + header("chunks", {
        "error:a": array("F32", [24], 0, 96), "velocity:a": array("F32", [24], 96, 192)}, {"steps": 1}, a) + ones[:192])
    write("hook_state", "other_model", b"\2\x08" + header("onebit", {}, {}, params(z="f32[1]")))
    whole = header("onebit", {}, {}, "{}")[:-1].replace(b"$B", b"0").replace(b"$C", b"cbf29ce484222325")
    write("hook_state", "whole_file", b"\2\1" + struct.pack("<Q", len(whole)) + whole)
    write("hook_state", "cut", b"\2\1" + struct.pack("<Q", 1 << 60) + b"{}")


def options():
    for name, text in {"gloo": "algorithm=direct,lanes=2,iface=lo", "ring": "algorithm=ring,wire=plain", "host": "host=127.0.0.1",
                       "known": "integer=5,real=2.5,flag=1,text=x", "twice": "integer=1,integer=2", "no_value": "flag",
                       "numbers": "integer=-5,real=1e-300", "bad": "integer=1x,real=nan"}.items():
        write("options", name, b"\3" + text.encode())
    hooks = {"powersgd": "rank=2,start=0,min_rate=1.5,epsilon=1e-9,seed=1,stats_interval=0,error_feedback=0,warm_start=1",
             "batched_powersgd": "orthogonalization=qr", "quantize_per_channel": "block=16,min_elements=0",
             "quantize_per_tensor": "min_elements=3", "onebit": "block=8", "topk": "ratio=0.25", "post_local_sgd": "start=5,subgroup=1",
             "allreduce": "", "noop": "", "fp16": "", "bf16(powersgd)": "rank=1", "fp16(fp16(topk))": "", "fp16()": "", "none": "a=b",
             "chunks": "chunk=64,ratio=0.25,momentum=0.9,warmup=7"}
    for number, (name, text) in enumerate(hooks.items()):
        write("hook_options", f"hook{number}", f"{name}\n{text}")


def verdicts():
    write("verdict", "died", b"\0-10 2 -1 -1 -1 rank 2 died")
    write("verdict", "bucket", b"\0-11 0 5 3 7 ranks disagree: two\nlines")
    write("verdict", "bad", b"\0" + b"0 0 0 0 0 fine")

    def signature(plan=7, step=3, synced=3, sequence=40, count=1000, bucket=2, kind=1, dtype=3, op=1, root=0, device=0, purpose=0):
        return struct.pack("<QqqqQiiiiiiiiii", plan, step, synced, sequence, count, bucket, kind, dtype, op, root, device, purpose, 0, -1, 0)
    write("verdict", "same", b"\1" + signature() + signature())
    write("verdict", "own", b"\1" + signature() + signature(plan=0, step=-1, bucket=-1) + b"parameters 'a' to 'f'")
    write("verdict", "steps", b"\1" + signature(step=2, synced=2) + signature(step=4, synced=2))
    write("verdict", "purpose", b"\1" + signature(purpose=3) + signature(purpose=99, kind=9, dtype=-1, op=77))


def topologies():
    for name, text in {"one_host": "0 0 0", "two": "0 1 0", "all": "0 1 2", "short": "0", "negative": "0 -1 0", "words": "a b"}.items():
        write("topology", name, b"\2\1" + text.encode())
    write("topology", "rank0", b"\2\0host a\nhost b")


def shared_memory():
    write("shm_handoff", "good", bytes([4, 1, 0, 1]) + b"d")
    write("shm_handoff", "two", bytes([4, 2, 0, 1, 1]) + b"d")
    write("shm_handoff", "can_shrink", bytes([4, 1, 1, 1]) + b"d")
    write("shm_handoff", "refused", bytes([4, 0, 1]) + b"r")
    write("shm_handoff", "nothing", bytes([4, 0, 0]))
    write("shm_handoff", "later", bytes([4, 0, 1]) + b"l")
    write("shm_handoff", "name", b"\xffnobody")
    write("shm_handoff", "address", b"\xffnobody " + b"0" * 64)
    write("shm_handoff", "thief_silent", bytes([128, 0]))
    write("shm_handoff", "thief_guesses", bytes([128, 63]) + b"0")
    write("shm_handoff", "thief_longer", bytes([128, 64]) + b"0")
    write("shm_handoff", "rank", bytes([128, 64]))
    for kind in range(5):
        shared = bytes([kind, 2, 0, 0, 0, 2]) + b"\1\0" if kind < 4 else bytes([kind, 2, 0, 0]) + b"\1\0"
        post = bytes([100, 0, 100, 0, 0, 0])
        write("shm_posts", f"shared{kind}", shared + 2 * post + b"\0" + bytes(64) + bytes(18))
        write("shm_posts", f"staged{kind}", shared[:-2] + b"\0\0" + 2 * bytes([0, 0, 0, 4]) + b"data" + bytes(90))


def wire():
    for kind in range(3):
        for protection in range(2):
            write("wire_handshake", f"start{kind}_{protection}", bytes([kind, protection]))
    write("wire_handshake", "changed", bytes([2, 0, 0, 200, 40, 0, 1]))
    write("wire_handshake", "version", bytes([2, 0, 0xc8, 2, 0, 0x28, 0]))
    write("wire_handshake", "record", bytes([0, 0, 5]) + b"\x16\x03\x01\x02\x00" + bytes([9]) + b"\x01\0\1\xfc\x03\x03abc")
    send, pass_on, receive = b"\0\5hello\0\0", b"\x64", b"\xf0\4\4\4\4"
    write("wire_frames", "one", send + pass_on + receive)
    write("wire_frames", "several", (send + b"\0\0\x10\x40" + pass_on) * 2 + receive * 3)
    write("wire_frames", "changed", send + b"\x96\5\0\1" + receive)
    write("wire_frames", "stranger", b"\xb4\x0a\5\0\0\0abcdef" + receive)
    for lane in range(2):
        opening, data, move = b"\1\3" + b"\3\0\3abc", b"\0\4" + b"\2\0\4data", b"\x0e\0"
        write("tcp_lane", f"messages{lane}", bytes([lane]) + opening + move + data + move + b"\x08\0" + opening + move)
        write("tcp_lane", f"goodbye{lane}", bytes([lane]) + b"\1\3" + b"\2\xf9\0" + move)
        write("tcp_lane", f"early{lane}", bytes([lane]) + b"\3\0\3abc" + b"\x0c\0" + b"\1\3" + move)
        write("tcp_lane", f"other_size{lane}", bytes([lane]) + b"\1\3" + b"\3\xfa\3abc" + b"\xff" * 8 + move)


def codecs():
    for kind in range(6):
        for dtype in range(4):
            head = bytes([kind, 2, 2, dtype, 2, 1, dtype & 1, 1])
            parts = b"".join(struct.pack("<HB", count, 1) for count in (100, 3000))
            write("codecs", f"codec{kind}_{dtype}", head + parts + bytes(range(0, 256, 7)))


def tools():
    lines = {
        "ranks": ["-n", "4", "./trainer", "--epochs", "10"],
        "nodes": ["--nnodes", "2", "--node-rank", "1", "-n", "4", "--rdzv", "host0:29500", "--secret-file", "s", "./trainer"],
        "times": ["--timeout", "0.5", "--report-time", "1e1", "--grace=2", "--node-timeout", "30", "--", "a"],
        "output": ["--no-tag", "--log-dir", "logs", "--env", "A=B", "--env=C=", "--place", "cores", "a"],
        "stamps": ["--timestamps", "--max-restarts", "3", "--bind", "0.0.0.0", "a"],
        "help": ["--help"], "version": ["--version"], "none": [], "nan": ["--grace", "nan", "a"], "reserved": ["--env", "DDP_RANK=1", "a"],
        "bad": ["-n", "0x10", "--bogus"],
    }
    for name, words in lines.items():
        write("run_options", name, "\n".join(words))
    report = b"0 1 137 1 4 9\nrank 1 was killed"
    write("run_messages", "order", b"\x80" + b"2 1 7 0 3 41\nnode 1 does not answer any more")
    write("run_messages", "reports", b"\1" + bytes([len(report)]) + report + bytes([14]) + b"0 3 0 1 0 120\n")
    write("run_messages", "bad", b"\x80" + b"-1 9 x")
    write("run_output", "lines", b"\x07one\ntwo\n\nlast without an end")
    write("run_output", "plain", b"\x06one\ntwo")
    write("bench_model", "shapes", "# a model\nscale\nweight 3 0 5 # empty\nother 10 @2.5\n")
    write("bench_model", "bad", "a 1 @x\n")
    write("bench_model", "large", "a 500000000000000000\n" * 20)
    write("bench_model", "often", "a 1000 @1e307\n")


def api():
    # Steps of program.cc by number. set_up, register and a step of three calls, with plain arguments.
    calm = bytes(40)
    steps = bytes([3]) + bytes(60) + bytes([5]) + calm[:2] + bytes([7]) + calm[:9] + bytes([11, 3]) + calm[:4]
    write("api", "steps", steps)
    # peers.cc: first how many bytes are the other rank's, and they.
    for name, told in {"nothing": b"", "zeros": bytes(48), "ones": struct.pack("<6Q", *[1] * 6), "huge": b"\xff" * 48}.items():
        write("peers", name, bytes([len(told)]) + told + steps)
    for number in range(48):
        write("api", f"call{number:02}", bytes([3]) + bytes([0, 0, 0, 0, 0, 200]) + bytes(70) + bytes([number]) + bytes(30) + bytes([7]) +
              bytes(12) + bytes([11, 5, 0, 0]))


def job_records():
    joined, begin, end, broken, left, step, launch, hook_end, backward_end, step_end = range(1, 11)
    group, context, plan, verdict, peers, failure = 1, 2, 3, 4, 6, 7

    def event(kind, owner, at, since=0, number=0, of_step=-1, bucket=-1, sequence=0, detail=0):
        return struct.pack("<QqqqqQHHiii", 1, at, since, of_step, sequence, 100, kind, owner, bucket, -1, detail)

    def fact(kind, owner, content):
        return bytes([kind, owner, len(content)]) + content

    facts = (fact(group, 1, struct.pack("<ii", 0, 2) + b"world\0key\0tcp\0") +
             fact(context, 2, struct.pack("<iiII", 1, 2, 4, 3) + b"weight\0bias\0") +
             fact(plan, 2, struct.pack("<iiii", 1, 1, 1, 0)))
    trained = [event(joined, 1, 10), event(step, 2, 20, of_step=3), event(launch, 2, 21, of_step=3, bucket=0),
               event(hook_end, 2, 22, since=21, of_step=3, bucket=0), event(backward_end, 2, 23, of_step=3),
               event(begin, 1, 24, of_step=3, bucket=0, sequence=5)]
    write("record", "waits", bytes([len(trained) - 1, 0]) + b"".join(trained) + facts)
    ended = trained[1:] + [event(end, 1, 30, since=24, of_step=3, bucket=0, sequence=5), event(step_end, 2, 31, of_step=3), event(left, 1, 40)]
    write("record", "ended", bytes([7, 0]) + b"".join(ended) + facts)
    write("record", "broken", bytes([1, 0]) + event(joined, 1, 10) + event(broken, 1, 50) + facts +
          fact(verdict, 1, struct.pack("<iiiiq", -7, 1, -1, -1, 3) + b"rank 1 is late"))
    write("record", "links", bytes([0, 0]) + trained[-1] + facts +
          fact(peers, 1, struct.pack("<iIQQqqq", 1, 3, 1 << 21, 100, 25, 1 << 30, 0)) +
          fact(failure, 0, struct.pack("<qiiiiq", 30, -2, -1, -1, -1, -1) + b"no memory\0"))


for make in (job_records, packed_records, rosters, etcd_json, etcd_replica, tcp_directory, exporter, store_frames, store_state, store_replies,
             environment, addresses, file_log, plans, shard_states, hook_states, options, verdicts, topologies, shared_memory, wire, codecs, tools, api):
    make()
