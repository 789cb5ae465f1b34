//! Prints the path of the protoc that comes with `protoc-bin-vendored`.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("{}", protoc_bin_vendored::protoc_bin_path()?.display());
    Ok(())
}
