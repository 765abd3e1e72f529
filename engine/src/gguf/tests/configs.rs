//! RoPE scaling, and `config.json` of Hugging Face directories.

use std::f64::consts::TAU;

use super::*;

fn config(change: impl FnOnce(&mut serde_json::Value)) -> Result<ModelSpec, GgufError> {
    let mut json = serde_json::json!({
        "model_type": "llama", "hidden_size": 2048, "num_attention_heads": 32, "num_key_value_heads": 8,
        "num_hidden_layers": 16, "intermediate_size": 8192, "vocab_size": 128_256, "head_dim": 64,
        "max_position_embeddings": 131_072, "rms_norm_eps": 1e-5, "rope_theta": 500_000.0,
        "tie_word_embeddings": true, "hidden_act": "silu", "attention_bias": false, "mlp_bias": false,
    });
    change(&mut json);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("config.json");
    std::fs::write(&path, json.to_string()).unwrap();
    ModelSpec::from_hf_config(&path)
}

fn llama3() -> serde_json::Value {
    serde_json::json!({"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192})
}

#[test]
fn a_config_gives_the_same_spec_as_metadata_would() {
    let spec = config(|_| ()).unwrap();
    assert_eq!((spec.layers, spec.hidden, spec.heads, spec.kv_heads, spec.head_dim), (16, 2048, 32, 8, 64));
    assert_eq!((spec.ffn, spec.vocab, spec.context, spec.tied_embeddings), (8192, 128_256, 131_072, true));
    assert_eq!((spec.rope.style, spec.rope.scaling), (RopeStyle::HalfSplit, RopeScaling::None));
    let mistral = config(|json| {
        json["model_type"] = "mistral".into();
        json["sliding_window"] = serde_json::Value::Null;
    });
    assert_eq!(mistral.unwrap().architecture, Architecture::Llama);
    let qwen2 = config(|json| {
        json["model_type"] = "qwen2".into();
        json["sliding_window"] = 4096.into();
        json["use_sliding_window"] = false.into();
        json.as_object_mut().unwrap().remove("head_dim");
    })
    .unwrap();
    assert!(qwen2.qkv_bias && !qwen2.qk_norm && qwen2.head_dim == 64);
    assert!(config(|json| json["model_type"] = "qwen3".into()).unwrap().qk_norm);
}

#[test]
fn a_config_that_asks_for_more_is_refused_by_key() {
    type Change = Box<dyn FnOnce(&mut serde_json::Value)>;
    let set =
        |key: &'static str, value: serde_json::Value| -> Change { Box::new(move |json| json[key] = value) };
    for (change, key, supported) in [
        (set("model_type", "phi3".into()), "model_type", "qwen2"),
        (set("hidden_act", "gelu".into()), "hidden_act", "silu"),
        (set("attention_bias", true.into()), "attention_bias", "false"),
        (set("sliding_window", 4096.into()), "sliding_window", "null"),
        (set("quantization_config", serde_json::json!({})), "quantization_config", "bf16"),
        (
            set("rope_scaling", serde_json::json!({"type": "dynamic", "factor": 2.0})),
            "rope_scaling.type",
            "yarn",
        ),
        (
            set("rope_scaling", serde_json::json!({"rope_type": "longrope"})),
            "rope_scaling.rope_type",
            "llama3",
        ),
    ] {
        let error = config(change).unwrap_err().to_string();
        assert!(error.contains(&format!("key `{key}`")) && error.contains(supported), "{error}");
        assert!(error.contains("config.json"), "{error}");
    }
    for (change, said) in [
        (set("hidden_size", serde_json::Value::Null), "key `hidden_size` is missing"),
        (set("num_key_value_heads", 5.into()), "key `num_key_value_heads` is 5"),
        (set("vocab_size", "many".into()), "key `vocab_size` is \"many\""),
        (set("rope_scaling", serde_json::json!({"type": "linear"})), "key `rope_scaling.factor` is missing"),
        (
            set("rope_scaling", serde_json::json!({"type": "linear", "factor": 0.0})),
            "key `rope_scaling.type` is Linear",
        ),
    ] {
        let error = config(change).unwrap_err().to_string();
        assert!(error.contains(said), "{error}");
    }
}

#[test]
fn linear_scaling_divides_every_frequency() {
    let plain = spec(&tiny()).unwrap().rope.frequencies();
    assert_eq!((plain.inv_freq.len(), plain.inv_freq[0], plain.magnitude), (8, 1.0, 1.0));
    assert!((plain.inv_freq[1] - 10_000_f64.powf(-2.0 / 16.0)).abs() < 1e-12);
    for writer in [
        tiny().string("llama.rope.scaling.type", "linear").f32("llama.rope.scaling.factor", 4.0),
        tiny().f32("llama.rope.scaling.factor", 4.0),
        tiny().f32("llama.rope.scale_linear", 4.0),
    ] {
        let scaled = spec(&writer).unwrap().rope.frequencies();
        assert!(scaled.inv_freq.iter().zip(&plain.inv_freq).all(|(scaled, plain)| scaled * 4.0 == *plain));
    }
    let none = spec(&tiny().string("llama.rope.scaling.type", "none").f32("llama.rope.scaling.factor", 4.0))
        .unwrap();
    assert_eq!(none.rope.scaling, RopeScaling::None);
}

/// Llama 3.2's own numbers, by the published rule in terms of wavelengths.
#[test]
fn llama3_scaling_follows_its_rule_and_equals_the_factors_tensor() {
    for rope in [
        config(|json| json["rope_scaling"] = llama3()).unwrap().rope,
        config(|json| {
            json.as_object_mut().unwrap().remove("rope_theta");
            json["rope_parameters"] = llama3();
            json["rope_parameters"]["rope_theta"] = 500_000.0.into();
        })
        .unwrap()
        .rope,
    ] {
        let plain: Vec<f64> = (0..32).map(|pair| 500_000_f64.powf(-f64::from(pair) / 32.0)).collect();
        let got = rope.frequencies();
        let (mut kept, mut ramped, mut stretched) = (0, 0, 0);
        let mut factors = Vec::new();
        for (freq, got) in plain.iter().zip(&got.inv_freq) {
            let wavelength = TAU / freq;
            let expected = if wavelength < 8192.0 / 4.0 {
                kept += 1;
                *freq
            } else if wavelength > 8192.0 {
                stretched += 1;
                freq / 32.0
            } else {
                ramped += 1;
                let smooth = (8192.0 / wavelength - 1.0) / 3.0;
                (1.0 - smooth) * freq / 32.0 + smooth * freq
            };
            assert!((got / expected - 1.0).abs() < 1e-9, "{got} {expected}");
            factors.push((freq / expected) as f32);
        }
        assert!(kept > 0 && ramped > 0 && stretched > 0);
        // GGUF files carry the same as divisors.
        let by_tensor = RopeSpec { scaling: RopeScaling::None, factors: Some(factors), ..rope.clone() };
        for (a, b) in by_tensor.frequencies().inv_freq.iter().zip(&got.inv_freq) {
            assert!((a / b - 1.0).abs() < 1e-6);
        }
    }
    let factors: Vec<f32> = (1..=8).map(|factor| factor as f32).collect();
    let with = spec(&tiny().tensor_f32("rope_freqs.weight", &[8], &factors)).unwrap();
    assert_eq!(with.rope.factors.as_deref(), Some(factors.as_slice()));
    let wrong = spec(&tiny().tensor_f32("rope_freqs.weight", &[4], &factors[..4])).unwrap_err().to_string();
    assert!(wrong.contains("rope_freqs.weight"), "{wrong}");
    assert!(spec(&tiny().tensor_f32("rope_freqs.weight", &[8], &[0.0; 8])).is_err());
}

/// Qwen2.5's published YaRN setting; the numbers are those of the `transformers` formulas, worked out by hand.
#[test]
fn yarn_keeps_fast_dimensions_and_stretches_slow_ones() {
    let by_config = config(|json| {
        json["model_type"] = "qwen2".into();
        json["rope_theta"] = 1_000_000.0.into();
        json["head_dim"] = 128.into();
        json["rope_scaling"] =
            serde_json::json!({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32_768});
    })
    .unwrap()
    .rope;
    let got = by_config.frequencies();
    assert!((f64::from(got.magnitude) - (0.1 * 4_f64.ln() + 1.0)).abs() < 1e-6);
    let plain = |pair: usize| 1_000_000_f64.powf(-(pair as f64) / 64.0);
    // floor(64 ln(32768 / (32 * 2π)) / ln 1e6) = 23 and ceil(64 ln(32768 / 2π) / ln 1e6) = 40.
    for pair in 0..64 {
        let stretch = ((pair as f64 - 23.0) / 17.0).clamp(0.0, 1.0);
        let expected = plain(pair) * (1.0 - stretch) + plain(pair) / 4.0 * stretch;
        assert!((got.inv_freq[pair] / expected - 1.0).abs() < 1e-9, "{pair}");
    }
    let writer = tiny()
        .string("llama.rope.scaling.type", "yarn")
        .f32("llama.rope.scaling.factor", 4.0)
        .u32("llama.rope.scaling.original_context_length", 128);
    match spec(&writer).unwrap().rope.scaling {
        RopeScaling::Yarn { factor, original_context, beta_fast, beta_slow, magnitude, truncate } => {
            assert_eq!(
                (factor, original_context, beta_fast, beta_slow, truncate),
                (4.0, 128, 32.0, 1.0, true)
            );
            assert!((magnitude - got.magnitude).abs() < 1e-6);
        }
        other => panic!("{other:?}"),
    }
    let given = config(|json| {
        json["rope_scaling"] =
            serde_json::json!({"rope_type": "yarn", "factor": 40.0, "mscale": 1.0, "mscale_all_dim": 1.0});
    });
    assert_eq!(given.unwrap().rope.frequencies().magnitude, 1.0);
    let no_factor = spec(&tiny().string("llama.rope.scaling.type", "yarn")).unwrap_err().to_string();
    assert!(no_factor.contains("llama.rope.scaling.factor"), "{no_factor}");
}
