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
    let mut input: Tensor<f32, 4> = Tensor::zeros([images.len() / 784, 1, 28, 28])?;
    input.data_mut().copy_from_slice(&images);
    let outputs = model.run(&Inputs { input: input.view() })?;
    let expected = numbers(format!("{}/expected_0.bin", words[2]));
    let got = outputs.output.data();
    let largest = expected.iter().fold(0.0, |most, each| each.abs().max(most));
    let tolerance = std::fs::read_to_string(format!("{}/expected_0.tolerance", words[2])).expect("a tolerance");
    let most = tolerance.trim().parse().expect("a number");
    assert_eq!(got.len(), expected.len());
    let off = got.iter().zip(&expected).map(|(a, b)| (a - b).abs() / largest);
    let worst = off.clone().fold(0.0, f32::max);
    println!("Rust, {}: {:?}, difference from eager {worst:.1e} of {most:.1e}", model.level(), outputs.output.shape());
    assert!(off.into_iter().all(|each| each <= most), "OTHER NUMBERS"); // not of NaN
    println!("the same numbers");
    Ok(())
}
