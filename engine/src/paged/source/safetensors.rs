//! Tensors of a Hugging Face directory: `model.safetensors`, or several files with an index.
//!
//! Headers are read at once, a tensor's bytes when it is asked for: the files are never in memory as a whole.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use safetensors::Dtype;
use safetensors::tensor::Metadata;

use super::{Names, StoredTensor, TensorSource};
use crate::EngineError;
use crate::gguf::TensorType;

/// Longest header that is read: the format's own limit.
const MAX_HEADER: u64 = 100_000_000;

/// The tensors of a directory.
#[derive(Debug)]
pub(crate) struct SafetensorsSource {
    dir: PathBuf,
    tensors: BTreeMap<String, Entry>,
}

/// Where a tensor is.
#[derive(Debug)]
struct Entry {
    file: PathBuf,
    shape: Vec<usize>,
    dtype: Dtype,
    offset: u64,
    bytes: usize,
}

impl SafetensorsSource {
    /// Opens `dir`: the files that `model.safetensors.index.json` names, or else all `*.safetensors` in it.
    pub(crate) fn open(dir: &Path) -> Result<Self, EngineError> {
        let mut tensors = BTreeMap::new();
        for file in weight_files(dir)? {
            for (name, entry) in read_header(&file)? {
                if let Some(other) = tensors.insert(name.clone(), entry) {
                    return Err(EngineError::Load(format!(
                        "tensor `{name}` is in both `{}` and `{}`; remove the file that does not belong to the model",
                        other.file.display(),
                        file.display()
                    )));
                }
            }
        }
        Ok(Self { dir: dir.into(), tensors })
    }
}

impl TensorSource for SafetensorsSource {
    fn names(&self) -> Names {
        Names::HuggingFace
    }

    fn place(&self) -> &Path {
        &self.dir
    }

    fn tensors(&self) -> Vec<String> {
        self.tensors.keys().cloned().collect()
    }

    fn read(&self, name: &str) -> Result<Option<StoredTensor<'_>>, EngineError> {
        let Some(entry) = self.tensors.get(name) else { return Ok(None) };
        let dtype = match entry.dtype {
            Dtype::F32 => TensorType::F32,
            Dtype::F16 => TensorType::F16,
            Dtype::BF16 => TensorType::BF16,
            other => {
                return Err(EngineError::Load(format!(
                    "`{}`: tensor `{name}` is stored as {other:?}, which is not supported; use a checkpoint in F32, F16 \
                     or BF16, or a GGUF file",
                    entry.file.display()
                )));
            }
        };
        let mut data = vec![0; entry.bytes];
        let mut read = || {
            let mut file = File::open(&entry.file)?;
            file.seek(SeekFrom::Start(entry.offset))?;
            file.read_exact(&mut data)
        };
        read().map_err(|e| unreadable(&entry.file, &e))?;
        let (file, shape) = (entry.file.clone(), entry.shape.clone());
        Ok(Some(StoredTensor { name: name.to_owned(), file, shape, dtype, data: Cow::Owned(data) }))
    }
}

fn unreadable(file: &Path, error: &dyn std::fmt::Display) -> EngineError {
    EngineError::Load(format!("cannot read `{}`: {error}", file.display()))
}

/// The files that hold the weights, ascending.
fn weight_files(dir: &Path) -> Result<Vec<PathBuf>, EngineError> {
    #[derive(serde::Deserialize)]
    struct Index {
        weight_map: BTreeMap<String, String>,
    }
    let index = dir.join("model.safetensors.index.json");
    if index.is_file() {
        let text = std::fs::read(&index).map_err(|e| unreadable(&index, &e))?;
        let parsed: Index = serde_json::from_slice(&text).map_err(|e| unreadable(&index, &e))?;
        let mut names: Vec<_> = parsed.weight_map.into_values().collect();
        names.sort_unstable();
        names.dedup();
        let missing = names.iter().find(|name| !dir.join(name).is_file());
        return match missing {
            Some(name) => Err(EngineError::Load(format!(
                "`{}` names `{name}`, which is missing; put it beside the other files",
                index.display()
            ))),
            None => Ok(names.iter().map(|name| dir.join(name)).collect()),
        };
    }
    let entries = std::fs::read_dir(dir).map_err(|e| unreadable(dir, &e))?;
    let mut files: Vec<_> = entries
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .filter(|path| path.extension().is_some_and(|end| end == "safetensors"))
        .collect();
    files.sort_unstable();
    if files.is_empty() {
        return Err(EngineError::Load(format!(
            "`{}` holds no *.safetensors; other formats (pytorch_model.bin) have to be converted",
            dir.display()
        )));
    }
    Ok(files)
}

/// The tensors of one file: its header, checked against the file's length.
fn read_header(path: &Path) -> Result<Vec<(String, Entry)>, EngineError> {
    let corrupt = |what: &dyn std::fmt::Display| {
        EngineError::Load(format!(
            "`{}` is not a usable safetensors file: {what}; fetch it again",
            path.display()
        ))
    };
    let mut file = File::open(path).map_err(|e| unreadable(path, &e))?;
    let length = file.metadata().map_err(|e| unreadable(path, &e))?.len();
    let mut size = [0; 8];
    file.read_exact(&mut size).map_err(|e| corrupt(&e))?;
    let header_bytes = u64::from_le_bytes(size);
    if header_bytes > MAX_HEADER.min(length.saturating_sub(8)) {
        return Err(corrupt(&format_args!("a header of {header_bytes} bytes in a file of {length}")));
    }
    let mut header = vec![0; header_bytes as usize];
    file.read_exact(&mut header).map_err(|e| corrupt(&e))?;
    // Parsing checks that the tensors follow one another without gaps and have the size of their shape and type.
    let metadata: Metadata = serde_json::from_slice(&header).map_err(|e| corrupt(&e))?;
    let start = 8 + header_bytes;
    if start + metadata.data_len() as u64 > length {
        return Err(corrupt(&format_args!("it ends at byte {length}, before the last tensor does")));
    }
    let entries = metadata.offset_keys().into_iter().filter_map(|name| {
        let info = metadata.info(&name)?;
        let (from, to) = info.data_offsets;
        let entry = Entry {
            file: path.into(),
            shape: info.shape.clone(),
            dtype: info.dtype,
            offset: start + from as u64,
            bytes: to - from,
        };
        Some((name, entry))
    });
    Ok(entries.collect())
}
