//! The example of the library interface works as described.

#[path = "../examples/shared_file.rs"]
mod shared_file;

#[test]
fn the_example_runs() {
    shared_file::main().expect("it ends well");
}
