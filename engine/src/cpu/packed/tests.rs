use candle_core::Device;
use candle_core::quantized::{GgmlDType, QTensor};

use super::*;
use crate::cpu::testing::{ALL_TYPES, Rng, assert_same_bits, tensor_bytes};

fn candle_type(ty: GgmlType) -> GgmlDType {
    match ty {
        GgmlType::F32 => GgmlDType::F32,
        GgmlType::F16 => GgmlDType::F16,
        GgmlType::Bf16 => GgmlDType::BF16,
        GgmlType::Q4_0 => GgmlDType::Q4_0,
        GgmlType::Q4_1 => GgmlDType::Q4_1,
        GgmlType::Q5_0 => GgmlDType::Q5_0,
        GgmlType::Q5_1 => GgmlDType::Q5_1,
        GgmlType::Q8_0 => GgmlDType::Q8_0,
        GgmlType::Q2K => GgmlDType::Q2K,
        GgmlType::Q3K => GgmlDType::Q3K,
        GgmlType::Q4K => GgmlDType::Q4K,
        GgmlType::Q5K => GgmlDType::Q5K,
        GgmlType::Q6K => GgmlDType::Q6K,
    }
}

#[test]
fn weights_have_the_values_that_candle_reads_from_the_same_bytes() {
    let compute = Compute::new(2).unwrap();
    for ty in ALL_TYPES {
        let (outputs, inputs) = (37, 512);
        let data = tensor_bytes(&mut Rng::new(ty.code() as u64), ty, outputs, inputs);
        let packed = Packed::from_ggml(&compute, ty.code(), &data, outputs, inputs).unwrap();
        let tensor: QTensor = candle_core::quantized::ggml_file::qtensor_from_ggml(
            candle_type(ty),
            &data,
            vec![outputs, inputs],
            &Device::Cpu,
        )
        .unwrap();
        let expected: Vec<f32> =
            tensor.dequantize(&Device::Cpu).unwrap().flatten_all().unwrap().to_vec1().unwrap();
        let mut found = vec![0.0; inputs];
        for (row, expected) in expected.chunks(inputs).enumerate() {
            packed.dequantise_row(row, &mut found);
            // Adding 0 makes -0 the same as 0.
            let positive = |values: &[f32]| values.iter().map(|v| v + 0.0).collect::<Vec<f32>>();
            assert_same_bits(&positive(&found), &positive(expected), &format!("{ty:?} row {row}"));
        }
    }
}

#[test]
fn packed_formats_stay_near_their_size_in_the_file() {
    let compute = Compute::new(1).unwrap();
    for ty in ALL_TYPES {
        let data = tensor_bytes(&mut Rng::new(1), ty, 64, 512);
        let packed = Packed::from_ggml(&compute, ty.code(), &data, 64, 512).unwrap();
        let ratio = packed.bytes() as f64 / data.len() as f64;
        assert!((1.0..1.96).contains(&ratio), "{ty:?} grows by {ratio}");
        assert_eq!((packed.outputs(), packed.inputs(), packed.ggml_type()), (64, 512, ty));
    }
}

#[test]
fn what_cannot_be_packed_is_refused_with_what_to_do() {
    let compute = Compute::new(1).unwrap();
    let error = |code, len, outputs, inputs| {
        Packed::from_ggml(&compute, code, &vec![0; len], outputs, inputs).unwrap_err()
    };
    let unsupported = error(23, 0, 1, 256).to_string();
    assert!(unsupported.contains("23 (IQ4_XS)") && unsupported.contains("Q4_0, Q4_1"), "{unsupported}");
    assert!(error(39, 0, 1, 256).to_string().contains("MXFP4"));
    assert!(error(4711, 0, 1, 256).to_string().contains("4711 (unknown)"));
    assert_eq!(error(2, 18, 1, 33), CpuError::PartialBlock { name: "Q4_0", block: 32, inputs: 33 });
    assert_eq!(
        error(2, 17, 1, 32),
        CpuError::WrongLength { name: "Q4_0", outputs: 1, inputs: 32, expected: 18, found: 17 }
    );
    assert_eq!(error(0, 0, 0, 5), CpuError::BadShape { outputs: 0, inputs: 5 });
    assert_eq!(error(0, 0, 1 << 63, 4), CpuError::BadShape { outputs: 1 << 63, inputs: 4 });
}
