//! Runs the package `digits` from Rust and compares its results with eager's: `digits WEIGHTS DATA`.
use digits::{Error, Inputs, Model, Tensor};

fn numbers(path: String) -> Vec<f32> {
    let bytes = std::fs::read(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
    bytes.chunks_exact(4).map(|four| f32::from_ne_bytes(four.try_into().unwrap())).collect()
}

fn main() -> Result<(), Error> {
    let words: Vec<String> = std::env::args().collect();
    let model = Model::load(&words[1])?;
    let images = numbers(format!("{}/in_0.bin", words[2]));
    let mut input: Tensor<f32, 4> = Tensor::zeros([images.len() / 784, 1, 28, 28], None)?;
    input.data_mut().copy_from_slice(&images);
    let outputs = model.run(&Inputs { input: input.view() })?;
    let expected = numbers(format!("{}/expected_0.bin", words[2]));
    let got = outputs.output.data();
    assert_eq!(got.len(), expected.len());
    let off = got.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    println!("Rust, {}: {:?}, difference from eager {off:.1e}", model.level(), outputs.output.shape());
    assert!(off <= 1e-5);
    Ok(())
}
