//! Asks pkg-config where libddp is. PKG_CONFIG_PATH names the folder of ddp.pc if that is not the system's.
use std::process::{exit, Command};

fn main() {
    println!("cargo:rerun-if-env-changed=PKG_CONFIG_PATH");
    let asked = Command::new("pkg-config").args(["--libs", "ddp"]).output();
    let said = match &asked {
        Ok(output) if output.status.success() => String::from_utf8_lossy(&output.stdout),
        Ok(output) => fail(&String::from_utf8_lossy(&output.stderr)),
        Err(error) => fail(&format!("pkg-config does not start: {error}")),
    };
    for flag in said.split_whitespace() {
        if let Some(folder) = flag.strip_prefix("-L") {
            println!("cargo:rustc-link-search=native={folder}");
        } else if let Some(library) = flag.strip_prefix("-l") {
            println!("cargo:rustc-link-lib={library}");
        }
    }
}

fn fail(why: &str) -> ! {
    eprintln!("ddp-sys needs libddp with its ddp.pc: set PKG_CONFIG_PATH to PREFIX/lib/pkgconfig\n{why}");
    exit(1);
}
