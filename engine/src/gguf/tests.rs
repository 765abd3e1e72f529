//! Tests of the reader on tiny files: whole, split, damaged, and asking for what is not supported.

use std::path::Path;

use proptest::prelude::*;

use super::write::{GgufWriter, TinyModel};
use super::*;

mod configs;

fn tiny() -> GgufWriter {
    TinyModel::default().writer()
}

fn open(writer: &GgufWriter) -> Result<GgufFile, GgufError> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tiny model.gguf");
    writer.write(&path).unwrap();
    GgufFile::open(&path)
}

fn spec(writer: &GgufWriter) -> Result<ModelSpec, GgufError> {
    ModelSpec::from_gguf(&open(writer)?)
}

#[test]
fn a_written_file_is_read_back() {
    let values: Vec<f32> = (0..64).map(|value| value as f32).collect();
    let writer = GgufWriter::new()
        .string("s", "text\0")
        .u32("n", 7)
        .f32("f", 0.5)
        .bool("b", true)
        .strings("l", &["a", ""])
        .pairs("p", &[("x", "y")])
        .i32s("i", &[-1, 2])
        .tensor_f32("t", &[2, 32], &values)
        .tensor_bf16("h", &[64], &values);
    let file = open(&writer).unwrap();
    let meta = file.metadata();
    assert_eq!(meta.string("s").unwrap(), Some("text"));
    assert_eq!((meta.size("n").unwrap(), meta.number("f").unwrap()), (Some(7), Some(0.5)));
    assert_eq!((meta.bool("b").unwrap(), meta.number("n").unwrap()), (Some(true), Some(7.0)));
    assert_eq!(meta.strings("l").unwrap().unwrap(), ["a", ""]);
    assert_eq!(meta.ints("i").unwrap().unwrap(), [-1, 2]);
    assert_eq!(
        meta.get("p"),
        Some(&Value::Arrays(vec![Value::Strings(vec!["x".to_owned(), "y".to_owned()])]))
    );
    assert_eq!(meta.size("absent").unwrap(), None);
    let said = meta.size("s").unwrap_err().to_string();
    assert!(
        said.contains("tiny model.gguf") && said.contains("key `s` is the text `text`, expected a count"),
        "{said}"
    );
    let t = file.require("t").unwrap();
    assert_eq!(
        (t.shape.as_slice(), t.dtype, t.elements(), t.byte_len()),
        (&[2, 32][..], TensorType::F32, 64, 256)
    );
    let read: Vec<f32> =
        file.bytes(t).chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
    assert_eq!(read, values);
    assert_eq!(file.require("h").unwrap().dtype, TensorType::BF16);
    assert_eq!(file.bytes(file.tensor("h").unwrap()).len(), 128);
    assert_eq!(file.tensors().map(|tensor| tensor.name.as_str()).collect::<Vec<_>>(), ["h", "t"]);
    assert!(file.require("u").unwrap_err().to_string().contains("tensor `u` is missing"));
}

#[test]
fn the_default_model_is_read() {
    let file = GgufFile::open(&crate::store::default_model_for_tests()).unwrap();
    assert_eq!((file.file_bytes(), file.tensors().count()), (98_362_432, 272));
    let spec = ModelSpec::from_gguf(&file).unwrap();
    let expected = ModelSpec {
        architecture: Architecture::Llama,
        name: Some("Smollm2 135M 8k Lc100K Mix1 Ep2".to_owned()),
        layers: 30,
        hidden: 576,
        heads: 9,
        kv_heads: 3,
        head_dim: 64,
        ffn: 1536,
        vocab: 49_152,
        context: 8192,
        rms_eps: f64::from(1e-5_f32),
        rope: RopeSpec {
            base: 100_000.0,
            dims: 64,
            style: RopeStyle::Interleaved,
            scaling: RopeScaling::None,
            factors: None,
        },
        tied_embeddings: true,
        qkv_bias: false,
        qk_norm: false,
    };
    assert_eq!(spec, expected);
    let q = file.require("blk.0.attn_q.weight").unwrap();
    assert_eq!((q.shape.as_slice(), q.dtype), (&[576, 576][..], TensorType::Q4_1));
    assert_eq!(file.bytes(q).len(), 576 * 576 / 32 * 20);
}

#[test]
fn types_that_cannot_be_read_are_named() {
    for (code, name) in
        [(20, "IQ4_NL"), (23, "IQ4_XS"), (39, "MXFP4"), (255, "not in the format's table"), (9, "Q8_1")]
    {
        let error = open(&tiny().with_code("blk.1.ffn_up.weight", code)).unwrap_err().to_string();
        for part in
            ["tiny model.gguf", "`blk.1.ffn_up.weight`", name, &format!("code {code}"), "Q4_K", "BF16"]
        {
            assert!(error.contains(part), "{error} lacks {part}");
        }
    }
    // Types may be mixed.
    let mixed = tiny().tensor_bf16("extra", &[32], &[0.5; 32]).tensor_raw("more", &[32], 8, vec![0; 34]);
    assert_eq!(open(&mixed).unwrap().require("more").unwrap().dtype, TensorType::Q8_0);
    let ragged = open(&tiny().tensor_raw("ragged", &[33], 8, vec![0; 68])).unwrap_err().to_string();
    assert!(
        ragged.contains("`ragged` of type Q8_0 has rows of Some(33) elements, not a multiple of 32"),
        "{ragged}"
    );
}

#[test]
fn every_type_has_a_code_and_a_name() {
    for code in 0..300 {
        if let Ok(dtype) = TensorType::from_code(code) {
            assert_eq!(dtype.code(), code);
            assert!(TensorType::supported().contains(dtype.name()));
            assert!(dtype.block_bytes() > 0 && dtype.block_elements() > 0);
        }
    }
}

#[test]
fn cut_and_damaged_files_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("cut.gguf");
    let whole = tiny().bytes();
    let refused = |bytes: &[u8]| {
        std::fs::write(&path, bytes).unwrap();
        let error = GgufFile::open(&path).unwrap_err();
        assert!(matches!(error, GgufError::Corrupt { .. }), "{error}");
        assert!(error.to_string().contains("cut.gguf"), "{error}");
        error.to_string()
    };
    let lengths = (0..2000).chain((2000..whole.len()).step_by(977)).chain([whole.len() - 1]);
    for len in lengths {
        refused(&whole[..len]);
    }
    assert!(refused(b"GGML____________").contains("does not start with `GGUF`"));
    let patched = |at: usize, with: &[u8]| {
        let mut bytes = whole.clone();
        bytes[at..at + with.len()].copy_from_slice(with);
        bytes
    };
    assert!(refused(&patched(4, &1_u32.to_le_bytes())).contains("version 1"));
    assert!(refused(&patched(4, &3_u32.to_be_bytes())).contains("big-endian"));
    assert!(refused(&patched(4, &9_u32.to_le_bytes())).contains("version 9"));
    // Absurd counts, which must not be believed when allocating.
    assert!(
        refused(&patched(8, &u64::MAX.to_le_bytes())).contains("number of tensors is 18446744073709551615")
    );
    assert!(refused(&patched(16, &(u64::MAX / 2).to_le_bytes())).contains("number of keys"));
    assert!(refused(&patched(24, &u64::MAX.to_le_bytes())).contains("a key"));
    let missing = GgufFile::open(Path::new("/nowhere/x.gguf")).unwrap_err().to_string();
    assert!(missing.contains("/nowhere/x.gguf"), "{missing}");
}

proptest! {
    /// Whatever bytes are flipped, the reader answers.
    #[test]
    fn damage_never_panics(flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6)) {
        let model = TinyModel { layers: 1, hidden: 32, heads: 1, kv_heads: 1, ffn: 32, ..TinyModel::default() };
        let mut bytes = model.writer().bytes();
        for (at, byte) in flips {
            // The header is what matters; most of the file is weights.
            let at = at.index(8_000.min(bytes.len()));
            bytes[at] = byte;
        }
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.gguf");
        std::fs::write(&path, bytes).unwrap();
        if let Ok(file) = GgufFile::open(&path) {
            let _ = ModelSpec::from_gguf(&file);
            let _ = crate::text::TextDescriptor::from_gguf(&file);
        }
    }
}

#[test]
fn split_models_are_put_together_from_any_part() {
    let dir = tempfile::tempdir().unwrap();
    let parts = tiny().write_split(dir.path(), "tiny", 3).unwrap();
    let whole = open(&tiny()).unwrap();
    let names = |file: &GgufFile| file.tensors().map(|tensor| tensor.name.clone()).collect::<Vec<_>>();
    let glob = dir.path().join("tiny-*.gguf");
    let link = dir.path().join("link");
    std::os::unix::fs::symlink(&parts[0], &link).unwrap();
    for path in [&parts[0], &parts[1], &glob, &dir.path().join("tiny-0000?-of-00003.gguf"), &link, dir.path()]
    {
        let file = GgufFile::open(path).unwrap();
        assert_eq!(names(&file), names(&whole));
        assert_eq!(file.paths().len(), 3);
        for tensor in whole.tensors() {
            assert_eq!(file.bytes(file.tensor(&tensor.name).unwrap()), whole.bytes(tensor));
        }
    }
    // Another model beside it.
    let other = TinyModel { layers: 3, ..TinyModel::default() }.writer();
    let others = other.write_split(dir.path(), "other", 3).unwrap();
    for mixed in [dir.path().join("*.gguf"), dir.path().to_owned()] {
        assert!(matches!(GgufFile::open(&mixed), Err(GgufError::MixedParts { .. })));
    }
    let crossed = vec![parts[0].clone(), others[1].clone(), parts[2].clone()];
    let error = GgufFile::open_parts(crossed).unwrap_err();
    assert!(matches!(error, GgufError::MixedParts { .. }), "{error}");
    // Renamed so that the names fit, contents give it away.
    std::fs::copy(&others[1], &parts[1]).unwrap();
    let error = GgufFile::open(&parts[0]).unwrap_err().to_string();
    assert!(error.contains("parts of different models") && error.contains("split.tensors.count"), "{error}");
    let swapped = vec![others[1].clone(), others[0].clone(), others[2].clone()];
    assert!(matches!(GgufFile::open_parts(swapped), Err(GgufError::MixedParts { .. })));
    std::fs::remove_file(&parts[1]).unwrap();
    let error = GgufFile::open(&parts[0]).unwrap_err().to_string();
    assert!(
        error.starts_with("part 2 of 3 missing: `") && error.contains("tiny-00002-of-00003.gguf"),
        "{error}"
    );
    // A part under a name that says nothing.
    let alone = dir.path().join("alone.gguf");
    std::fs::rename(&parts[0], &alone).unwrap();
    assert!(GgufFile::open(&alone).unwrap_err().to_string().starts_with("part 2 of 3 missing"));
}

#[test]
fn paths_may_have_spaces_links_slashes_and_dots() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("a folder");
    std::fs::create_dir(&folder).unwrap();
    let path = folder.join("my model.gguf");
    tiny().write(&path).unwrap();
    let link = dir.path().join("link.gguf");
    std::os::unix::fs::symlink(&path, &link).unwrap();
    let slash = format!("{}/", path.display());
    for path in [path.as_path(), &link, Path::new(&slash), &folder, &folder.join("../a folder/my model.gguf")]
    {
        assert!(GgufFile::open(path).is_ok(), "{}", path.display());
    }
    assert!(matches!(GgufFile::open(&folder.join("none-*.gguf")), Err(GgufError::Io { .. })));
}

#[test]
fn tied_and_untied_models_are_told_apart() {
    let tied = open(&tiny()).unwrap();
    let untied = open(&TinyModel { tied: false, ..TinyModel::default() }.writer()).unwrap();
    assert!(ModelSpec::from_gguf(&tied).unwrap().tied_embeddings);
    assert!(!ModelSpec::from_gguf(&untied).unwrap().tied_embeddings);
    assert_eq!(
        untied.bytes(untied.require("output.weight").unwrap()),
        tied.bytes(tied.require("token_embd.weight").unwrap())
    );
}

#[test]
fn architectures_differ_in_layout_biases_and_norms() {
    let of = |architecture| spec(&TinyModel { architecture, ..TinyModel::default() }.writer()).unwrap();
    let (llama, qwen2, qwen3) = (of("llama"), of("qwen2"), of("qwen3"));
    assert_eq!((llama.rope.style, llama.qkv_bias, llama.qk_norm), (RopeStyle::Interleaved, false, false));
    assert_eq!((qwen2.rope.style, qwen2.qkv_bias, qwen2.qk_norm), (RopeStyle::HalfSplit, true, false));
    assert_eq!((qwen3.rope.style, qwen3.qkv_bias, qwen3.qk_norm), (RopeStyle::HalfSplit, false, true));
}

#[test]
fn what_is_not_computed_is_refused_by_key() {
    for (writer, key, supported) in [
        (tiny().string("general.architecture", "gemma3"), "general.architecture", "qwen3"),
        (tiny().u32("llama.expert_count", 8), "llama.expert_count", "dense"),
        (
            tiny().u32("llama.attention.sliding_window", 128),
            "llama.attention.sliding_window",
            "as long as the context",
        ),
        (
            tiny().string("llama.rope.scaling.type", "longrope"),
            "llama.rope.scaling.type",
            "none, linear, llama3, yarn",
        ),
        (tiny().u32("llama.attention.value_length", 8), "llama.attention.value_length", "16"),
        (tiny().f32("llama.logit_scale", 2.0), "llama.logit_scale", "without"),
    ] {
        let error = spec(&writer).unwrap_err().to_string();
        assert!(error.contains(&format!("key `{key}`")) && error.contains(supported), "{error}");
        assert!(error.contains("not supported"), "{error}");
    }
    for key in [
        "general.architecture",
        "llama.block_count",
        "llama.context_length",
        "llama.attention.layer_norm_rms_epsilon",
    ] {
        let error = spec(&tiny().without(key)).unwrap_err().to_string();
        assert!(error.contains(&format!("key `{key}` is missing")), "{error}");
    }
    for (writer, key) in [
        (tiny().u32("llama.attention.head_count_kv", 3), "llama.attention.head_count_kv"),
        (tiny().u32("llama.rope.dimension_count", 17), "llama.rope.dimension_count"),
        (tiny().u32("llama.embedding_length", 65), "llama.embedding_length"),
        (tiny().i32s("llama.attention.head_count", &[4, 4]), "llama.attention.head_count"),
        (tiny().u32("llama.block_count", 0), "llama.block_count"),
        (tiny().u32("general.alignment", 24), "general.alignment"),
        (
            tiny().string("llama.rope.scaling.type", "linear").f32("llama.rope.scaling.factor", -2.0),
            "llama.rope.scaling.factor",
        ),
    ] {
        let error = spec(&writer).unwrap_err().to_string();
        assert!(error.contains(&format!("key `{key}` is")), "{error}");
    }
    assert!(spec(&tiny().u32("llama.attention.sliding_window", 512)).is_ok());
}
