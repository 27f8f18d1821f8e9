use super::*;
use crate::model::NamedTensor;

fn tiny() -> Weights {
    Weights::init(Arc::new(ModelConfig::tiny()), 7)
}

fn rewrite(dir: &Path, edit: impl FnOnce(&mut Vec<NamedTensor>)) -> String {
    let mut weights = tiny();
    edit(&mut weights.tensors);
    let path = dir.join("model.safetensors");
    weights.write(&path).unwrap();
    match Weights::read_dir(Arc::new(ModelConfig::tiny()), dir) {
        Ok(_) => "read".to_owned(),
        Err(e) => e.to_string().replace(&dir.display().to_string(), "DIR"),
    }
}

#[test]
fn a_round_trip_keeps_every_bit() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("w.safetensors");
    let weights = tiny();
    weights.write(&path).unwrap();
    let first = std::fs::read(&path).unwrap();
    let again = Weights::read(weights.config.clone(), &path).unwrap();
    assert_eq!(again.hash(), weights.hash());
    again.write(&path).unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), first);
    assert_ne!(Weights::init(weights.config.clone(), 8).hash(), weights.hash());
}

#[test]
fn errors_name_the_file_and_the_tensor() {
    let dir = tempfile::tempdir().unwrap();
    let d = dir.path();
    assert_eq!(rewrite(d, |_| ()), "read");
    let missing = rewrite(d, |t| drop(t.remove(3)));
    assert!(
        missing.contains("DIR/model.safetensors: tensor `model.layers.0.self_attn.k_proj.weight`: missing")
    );
    let extra = rewrite(d, |t| {
        t.push(("adapter.weight".into(), vec![1], Arc::new(vec![0.0])))
    });
    assert!(
        extra.contains("tensor `adapter.weight`: not part of this model"),
        "{extra}"
    );
    let shape = rewrite(d, |t| t[1].1 = vec![2, 48]);
    assert!(
        shape.contains("input_layernorm.weight`: expected shape [96]; got [2, 48]"),
        "{shape}"
    );
    let nan = rewrite(d, |t| Arc::make_mut(&mut t[0].2)[5] = f32::NAN);
    assert!(nan.contains("value NaN at index 5 is not finite"), "{nan}");
    let head = vec![0.0; 272 * 96];
    let tied = rewrite(d, |t| {
        t.push(("lm_head.weight".into(), vec![272, 96], Arc::new(head)))
    });
    assert!(tied.contains("differs from the embedding"), "{tied}");

    let path = d.join("model.safetensors");
    tiny().write(&path).unwrap();
    let bytes = std::fs::read(&path).unwrap();
    std::fs::write(&path, &bytes[..bytes.len() - 10]).unwrap();
    let cut = Weights::read_dir(Arc::new(ModelConfig::tiny()), d)
        .unwrap_err()
        .to_string();
    assert!(
        cut.contains("model.safetensors") && cut.contains("truncated"),
        "{cut}"
    );
}

#[test]
fn shards_and_half_precision_are_read() {
    let dir = tempfile::tempdir().unwrap();
    let weights = tiny();
    let mut map = serde_json::Map::new();
    for (shard, part) in weights.tensors.chunks(20).enumerate() {
        let file = format!("model-{shard}.safetensors");
        let halves: Vec<Vec<u8>> = part
            .iter()
            .map(|(_, _, v)| {
                v.iter()
                    .flat_map(|&x| half::bf16::from_f32(x).to_le_bytes())
                    .collect()
            })
            .collect();
        let views = part.iter().zip(&halves).map(|((name, shape, _), data)| {
            map.insert(name.clone(), file.clone().into());
            (
                name.clone(),
                TensorView::new(Dtype::BF16, shape.clone(), data).unwrap(),
            )
        });
        let views: Vec<_> = views.collect();
        safetensors::serialize_to_file(views, None, &dir.path().join(&file)).unwrap();
    }
    let index = serde_json::json!({ "weight_map": map }).to_string();
    std::fs::write(dir.path().join("model.safetensors.index.json"), index).unwrap();
    let read = Weights::read_dir(weights.config.clone(), dir.path()).unwrap();
    for (a, b) in read.tensors.iter().zip(&weights.tensors) {
        let rounded: Vec<f32> = b.2.iter().map(|&x| half::bf16::from_f32(x).to_f32()).collect();
        assert_eq!(*a.2, rounded, "{}", a.0);
    }
}

/// What each format loses, and that the directory reads back as what was written.
#[test]
fn every_format_reads_back_as_its_own_rounding() {
    let weights = Weights::init(
        Arc::new(ModelConfig {
            hidden_size: 160,
            intermediate_size: 200,
            ..ModelConfig::tiny()
        }),
        3,
    );
    let dir = tempfile::tempdir().unwrap();
    for format in WeightFormat::ALL {
        let path = dir.path().join(format!("{}.safetensors", format.name()));
        weights.write_as(&path, format).unwrap();
        let read = Weights::read(weights.config.clone(), &path).unwrap();
        for ((name, _, got), (_, shape, values)) in read.tensors.iter().zip(&weights.tensors) {
            let rounded: Vec<f32> = match format.tile(shape.last().copied().unwrap()) {
                _ if format == WeightFormat::F32 => values.to_vec(),
                Some(tile) if is_linear(name) => {
                    let inputs = shape[1];
                    let scales = tile.scales(values, inputs);
                    tile.decode(&tile.encode(values, inputs, &scales), inputs, &scales)
                }
                _ => values.iter().map(|&x| half::bf16::from_f32(x).to_f32()).collect(),
            };
            assert_eq!(**got, rounded, "{format:?} {name}");
        }
        // What was read is stored as it was: FP8 values are fixed points of their own quantisation, up to an ulp of the scale.
        let again = dir.path().join("again.safetensors");
        read.write_as(&again, format).unwrap();
        let twice = Weights::read(weights.config.clone(), &again).unwrap();
        for (a, b) in twice.tensors.iter().zip(&read.tensors) {
            assert!(
                a.2.iter()
                    .zip(b.2.iter())
                    .all(|(a, b)| (a - b).abs() <= b.abs() * 2e-7),
                "{format:?} {}",
                a.0
            );
        }
    }
}

/// Writes FP8 tensors by hand and reads them.
fn fp8(edit: impl FnOnce(&mut Vec<(String, Dtype, Vec<usize>, Vec<u8>)>)) -> Result<Weights, String> {
    let weights = tiny();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.safetensors");
    weights.write_as(&path, WeightFormat::Fp8Block).unwrap();
    let bytes = std::fs::read(&path).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let mut list: Vec<_> = file
        .iter()
        .map(|(name, view)| {
            (
                name.to_owned(),
                view.dtype(),
                view.shape().to_vec(),
                view.data().to_vec(),
            )
        })
        .collect();
    edit(&mut list);
    let views = list
        .iter()
        .map(|(name, dtype, shape, data)| (name, TensorView::new(*dtype, shape.clone(), data).unwrap()));
    safetensors::serialize_to_file(views, None, &path).unwrap();
    Weights::read(weights.config.clone(), &path).map_err(|e| e.to_string())
}

#[test]
fn mistakes_of_fp8_directories_name_the_tensor() {
    let codes = "model.layers.0.self_attn.q_proj.weight";
    let scales = "model.layers.0.self_attn.q_proj.weight_scale_inv";
    let at = |list: &[(String, Dtype, Vec<usize>, Vec<u8>)], name: &str| {
        list.iter().position(|t| t.0 == name).unwrap()
    };
    assert!(fp8(|_| ()).is_ok());
    let lost = fp8(|list| drop(list.remove(at(list, scales)))).unwrap_err();
    assert!(
        lost.contains(codes) && lost.contains("FP8 without scales"),
        "{lost}"
    );
    let alone = fp8(|list| drop(list.remove(at(list, codes)))).unwrap_err();
    assert!(
        alone.contains(scales) && alone.contains("which is not FP8"),
        "{alone}"
    );
    let shape = fp8(|list| {
        let i = at(list, scales);
        (list[i].2, list[i].3) = (vec![3, 1], vec![0; 12]);
    });
    let shape = shape.unwrap_err();
    assert!(
        shape.contains(scales) && shape.contains("[3, 1] fit neither"),
        "{shape}"
    );
    let nan = fp8(|list| {
        let i = at(list, codes);
        list[i].3[7] = 0x7f;
    });
    let nan = nan.unwrap_err();
    assert!(
        nan.contains(codes) && nan.contains("index 7 is not finite"),
        "{nan}"
    );
    let nan = fp8(|list| {
        let i = at(list, scales);
        list[i].3[..4].copy_from_slice(&f32::NAN.to_le_bytes());
    });
    assert!(
        nan.unwrap_err()
            .contains("weight_scale_inv`: value NaN at index 0")
    );
    let norm = fp8(|list| {
        let i = at(list, "model.norm.weight");
        (list[i].1, list[i].3) = (Dtype::F8_E4M3, vec![0; 96]);
    });
    assert!(norm.unwrap_err().contains("for a linear layer, F8_E4M3"));
}
