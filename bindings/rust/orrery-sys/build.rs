// The library is looked for in $ORRERY_LIB_DIR, else where the linker looks. The feature `vendored` builds it instead, by CMake, from the
// sources in $ORRERY_SOURCE_DIR, which are those that this crate lies in unless it is set.
use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

fn run(command: &mut Command) {
    let status = command.status().unwrap_or_else(|error| panic!("{:?}: {}", command, error));
    assert!(status.success(), "{:?}: {}", command, status);
}

fn build_library() {
    let here = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").unwrap());
    let sources = env::var_os("ORRERY_SOURCE_DIR").map_or_else(|| here.join("../../.."), PathBuf::from);
    let sources = sources.canonicalize().unwrap_or_else(|error| panic!("{}: {}", sources.display(), error));
    let build = Path::new(&env::var_os("OUT_DIR").unwrap()).join("library");
    run(Command::new("cmake").arg("-S").arg(&sources).arg("-B").arg(&build).args(["-DCMAKE_BUILD_TYPE=Release", "-DORRERY_TESTS=OFF", "-DORRERY_TOOL=OFF"]));
    run(Command::new("cmake").arg("--build").arg(&build).args(["--target", "orrery_static", "-j"]).arg(env::var("NUM_JOBS").unwrap_or("1".into())));
    println!("cargo:rustc-link-search=native={}", build.join("capi").display());
    println!("cargo:rustc-link-lib=dylib=stdc++");
    for name in ["include", "runtime", "capi"] {
        println!("cargo:rerun-if-changed={}", sources.join(name).display());
    }
}

fn main() {
    println!("cargo:rerun-if-env-changed=ORRERY_LIB_DIR");
    println!("cargo:rerun-if-env-changed=ORRERY_SOURCE_DIR");
    if env::var_os("CARGO_FEATURE_VENDORED").is_some() {
        build_library();
    } else if let Ok(folder) = env::var("ORRERY_LIB_DIR") {
        println!("cargo:rustc-link-search=native={}", folder);
    }
}
