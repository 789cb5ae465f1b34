//! etcd's client is generated while it is built, by `protoc`. Where that is missing, this says so in one sentence, as a rule before the build
//! script of the client panics. See docs/decisions/0019-protoc.md.

fn main() {
    println!("cargo::rerun-if-env-changed=PROTOC");
    if !has_protoc() {
        println!(
            "cargo::error=the etcd client needs the program protoc while it is built: install it (Debian: apt install protobuf-compiler, \
             macOS: brew install protobuf), or set PROTOC to its path"
        );
    }
}

/// Where the client's build script looks for it.
fn has_protoc() -> bool {
    if std::env::var_os("PROTOC").is_some() {
        return true;
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let program = format!("protoc{}", std::env::consts::EXE_SUFFIX);
    std::env::split_paths(&path).any(|folder| folder.join(&program).is_file())
}
