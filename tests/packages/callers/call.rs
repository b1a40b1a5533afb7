//! As call.c, and errors and threads.
use small::{Error, Inputs, Model, Options, Tensor, View};

fn main() -> Result<(), Error> {
    let arguments: Vec<String> = std::env::args().collect();
    let x: Vec<f32> = (0..15).map(|i| i as f32 * 0.37 - 2.0).collect();
    let index: Vec<i64> = (0..5).map(|i| i * i).collect();
    let model = Model::load(&arguments[1])?;
    let inputs = Inputs { x: View::new(&x, [5, 3])?, type_: View::new(&index, [5])? };
    let mut states = model.new_states(5)?;
    model.run(&inputs, &mut states.views())?;
    let mut outputs = small::Outputs { y: Tensor::zeros([5, 3])?, flags: Tensor::zeros([10])? };
    model.run_into(&inputs, &mut states.views(), &mut outputs.views())?;
    let mut bytes: Vec<u8> = outputs.y.data().iter().flat_map(|value| value.to_ne_bytes()).collect();
    bytes.extend(outputs.flags.data().iter().map(|&flag| u8::from(flag)));
    bytes.extend(states.cache.data().iter().flat_map(|value| value.to_ne_bytes()));
    bytes.extend(states.steps[[]].to_ne_bytes());
    std::fs::write(&arguments[2], bytes).unwrap();

    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let mut mine = model.new_states(5).unwrap();
                for _ in 0..200 {
                    mine.cache.data_mut().fill(1.0);
                    assert_eq!(model.run(&inputs, &mut mine.views()).unwrap().y.data(), outputs.y.data());
                }
            });
        }
    });

    let wrong = Inputs { x: View::new(&x[..10], [5, 2])?, ..inputs };
    let error = model.run(&wrong, &mut states.views()).unwrap_err();
    assert!(matches!(&error, Error::Shape(text) if text.contains('x') && text == &error.to_string()));
    let empty = Inputs { x: View::new(&[], [0, 3])?, type_: View::new(&[], [0])? };
    assert!(matches!(model.run(&empty, &mut model.new_states(0)?.views()), Err(Error::Shape(_))));
    outputs.flags = Tensor::zeros([9])?;
    let error = model.run_into(&inputs, &mut states.views(), &mut outputs.views()).unwrap_err();
    assert!(matches!(error, Error::Shape(text) if text.contains("flags")));
    let negative = Inputs { type_: View::new(&[-1; 5], [5])?, ..inputs };
    let error = model.run(&negative, &mut states.views()).unwrap_err();
    assert!(matches!(error, Error::Value(text) if text.contains("index out of range")));
    assert!(matches!(View::new(&x, [4, 3]), Err(Error::Shape(_))));
    assert!(matches!(View::new(&x, [usize::MAX, 2]), Err(Error::Shape(_))));
    assert!(matches!(Model::load("/nowhere"), Err(Error::Weights(_))));
    let unknown = Options { level: Some("x86-64-v9".into()), ..Options::default() };
    assert!(Model::load_with(&arguments[1], &unknown).is_err());
    assert_eq!(model.level(), "generic");
    Ok(())
}
