// The library is looked for in $ORRERY_LIB_DIR, else where the linker looks.
fn main() {
    println!("cargo:rerun-if-env-changed=ORRERY_LIB_DIR");
    if let Ok(folder) = std::env::var("ORRERY_LIB_DIR") {
        println!("cargo:rustc-link-search=native={}", folder);
    }
}
