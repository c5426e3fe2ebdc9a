"""The committed bindings of ddp-sys are those of the headers: SWIG and generate.py write the same file, the functions are those of the
ABI, and C and Rust agree on the size of each struct, the place of each field and the value of each constant.

    bindings_test.py SWIG CC RUSTC SCRATCH
"""
import pathlib
import re
import subprocess
import sys

SWIG, CC, RUSTC = sys.argv[1:4]
SCRATCH = pathlib.Path(sys.argv[4])
ROOT = pathlib.Path(__file__).resolve().parents[3]
COMMITTED = ROOT / "bindings/rust/ddp-sys/src/bindings.rs"

C = """#define DDP_EXPERIMENTAL 1
#include <ddp/ddp.h>
#include <stddef.h>
#include <stdio.h>
int main(void) {
%s}
"""
RUST = """#![allow(non_camel_case_types, dead_code, unused)]
include!("%s");
fn main() {
%s}
"""


def run(*command):
    return subprocess.run(command, check=True, timeout=100, stdout=subprocess.PIPE, text=True).stdout


def facts(text):
    """For each fact: its line of C, and its line of Rust."""
    for name, kind in re.findall(r"^pub const (\w+): (\w+) =", text, re.M):
        yield f'printf("{name} %lld\\n", (long long){name});', f'println!("{name} {{}}", {name} as i64);'
    for name, body in re.findall(r"^pub struct (\w+) \{\n(.*?)^\}", text, re.M | re.S):
        fields = re.findall(r"^    pub (?:r#)?(\w+):", body, re.M)
        if not fields:
            continue  # opaque
        yield f'printf("{name} %zu\\n", sizeof({name}));', f'println!("{name} {{}}", std::mem::size_of::<{name}>());'
        for field in fields:
            raw = f"r#{field}" if f"r#{field}:" in body else field
            yield (f'printf("{name}.{field} %zu\\n", offsetof({name}, {field}));',
                   f'println!("{name}.{field} {{}}", unsafe {{ let a: {name} = std::mem::zeroed(); '
                   f'std::ptr::addr_of!(a.{raw}) as usize - std::ptr::addr_of!(a) as usize }});')


def main():
    SCRATCH.mkdir(parents=True, exist_ok=True)
    text = COMMITTED.read_text()
    xml, again = SCRATCH / "ddp.xml", SCRATCH / "bindings.rs"
    run(SWIG, "-xml", "-Werror", f"-I{ROOT / 'include'}", "-o", xml, ROOT / "bindings/swig/ddp.i")
    run(sys.executable, "-B", ROOT / "bindings/rust/generate.py", xml, again)
    assert again.read_text() == text, f"{COMMITTED} is not that of the headers: bindings/rust/generate.py writes it"
    functions = sorted(re.findall(r"^    pub fn (\w+)", text, re.M))
    assert functions == sorted((ROOT / "abi/ddp.symbols").read_text().split()), "the functions are not those of abi/ddp.symbols"
    both = list(facts(text))
    (SCRATCH / "facts.c").write_text(C % "".join(f"    {c}\n" for c, _ in both))
    (SCRATCH / "facts.rs").write_text(RUST % (COMMITTED, "".join(f"    {rust}\n" for _, rust in both)))
    run(CC, f"-I{ROOT / 'include'}", SCRATCH / "facts.c", "-o", SCRATCH / "facts_c")
    run(RUSTC, "--edition", "2021", SCRATCH / "facts.rs", "-o", SCRATCH / "facts_rust")
    in_c, in_rust = run(SCRATCH / "facts_c").splitlines(), run(SCRATCH / "facts_rust").splitlines()
    different = [f"C: {c}, Rust: {rust}" for c, rust in zip(in_c, in_rust) if c != rust]
    assert len(in_c) == len(in_rust) == len(both) > 300 and not different, different
    print(f"{len(functions)} functions, {len(both)} sizes, places and constants")


main()
