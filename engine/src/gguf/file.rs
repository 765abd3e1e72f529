//! The reader: one or several mapped files, their metadata and their tensor table.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fs::File;
use std::path::{Path, PathBuf};

use memmap2::Mmap;

use super::cursor::Cursor;
use super::{GgufError, Metadata, TensorInfo, TensorType, Value, expand_parts};

const MAGIC: u32 = u32::from_le_bytes(*b"GGUF");
/// The format's default for `general.alignment`.
const ALIGNMENT: usize = 32;
/// The format allows 4 dimensions; more means damage.
const MAX_DIMENSIONS: u32 = 4;

/// An open GGUF model of one or several files. Cheap to open: bytes are mapped and read when used.
#[derive(Debug)]
pub struct GgufFile {
    paths: Vec<PathBuf>,
    maps: Vec<Mmap>,
    metadata: Metadata,
    tensors: BTreeMap<String, TensorInfo>,
}

impl GgufFile {
    /// Opens a model from one file, from any part of a split one (`…-00001-of-00003.gguf`; the others are looked for
    /// beside it), from a glob pattern that matches the parts of one model, or from a directory that holds one model.
    ///
    /// # Errors
    /// Files that are absent, cut short, damaged or of different models, and tensor types the engine cannot read.
    pub fn open(path: &Path) -> Result<Self, GgufError> {
        Self::open_parts(expand_parts(path)?)
    }

    /// Opens exactly these files as the parts of one model, in this order.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_parts(paths: Vec<PathBuf>) -> Result<Self, GgufError> {
        let mut maps = Vec::with_capacity(paths.len());
        let mut headers = Vec::with_capacity(paths.len());
        for (part, path) in paths.iter().enumerate() {
            let map = map_file(path)?;
            headers.push(Header::read(&map, path, part)?);
            maps.push(map);
        }
        check_parts(&paths, &headers)?;
        let mut metadata = None;
        let mut tensors: BTreeMap<String, TensorInfo> = BTreeMap::new();
        for header in headers {
            metadata.get_or_insert(header.metadata);
            for tensor in header.tensors {
                match tensors.entry(tensor.name.clone()) {
                    Entry::Vacant(slot) => {
                        slot.insert(tensor);
                    }
                    Entry::Occupied(slot) => {
                        return Err(GgufError::MixedParts {
                            first: paths[slot.get().part].clone(),
                            other: paths[tensor.part].clone(),
                            what: format!("both hold tensor `{}`", tensor.name),
                        });
                    }
                }
            }
        }
        Ok(Self { metadata: metadata.unwrap_or_default(), paths, maps, tensors })
    }

    /// The first file.
    pub fn path(&self) -> &Path {
        self.metadata.path()
    }

    /// All files in order.
    pub fn paths(&self) -> &[PathBuf] {
        &self.paths
    }

    /// Size of all files in bytes.
    pub fn file_bytes(&self) -> u64 {
        self.maps.iter().map(|map| map.len() as u64).sum()
    }

    /// The metadata of the first file.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// All tensors, by name.
    pub fn tensors(&self) -> impl Iterator<Item = &TensorInfo> {
        self.tensors.values()
    }

    /// A tensor by its name.
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.tensors.get(name)
    }

    /// A tensor that must be there.
    ///
    /// # Errors
    /// [`GgufError::MissingTensor`].
    pub fn require(&self, name: &str) -> Result<&TensorInfo, GgufError> {
        self.tensor(name)
            .ok_or_else(|| GgufError::MissingTensor { path: self.path().to_owned(), tensor: name.to_owned() })
    }

    /// A tensor's bytes as stored, `elements / block_elements * block_bytes` of them, borrowed from the mapping; empty
    /// for an entry of another file.
    pub fn bytes(&self, tensor: &TensorInfo) -> &[u8] {
        self.maps.get(tensor.part).and_then(|map| map.get(tensor.range.clone())).unwrap_or_default()
    }
}

#[expect(unsafe_code, reason = "memory-mapping a file has no safe form")]
fn map_file(path: &Path) -> Result<Mmap, GgufError> {
    let failed = |source| GgufError::Io { path: path.to_owned(), source };
    let file = File::open(path).map_err(failed)?;
    if file.metadata().map_err(failed)?.is_dir() {
        return Err(failed(std::io::Error::new(std::io::ErrorKind::IsADirectory, "it is a directory")));
    }
    // SAFETY: the mapping is read-only. It is sound as long as nobody shortens or rewrites the file while the model is
    // in use; the model store only ever renames finished files into place, and the README says so for files by hand.
    unsafe { Mmap::map(&file) }.map_err(failed)
}

/// What one file says of itself.
struct Header {
    metadata: Metadata,
    tensors: Vec<TensorInfo>,
}

impl Header {
    fn read(data: &[u8], path: &Path, part: usize) -> Result<Self, GgufError> {
        let mut cursor = Cursor::new(data, path);
        if cursor.u32("the magic number")? != MAGIC {
            return Err(cursor.corrupt("it does not start with `GGUF`"));
        }
        let version = cursor.u32("the version")?;
        if !(2..=3).contains(&version) {
            let what = match version {
                1 => "it has version 1, which is obsolete; convert the model again".to_owned(),
                other if other.swap_bytes() <= 3 => "it is big-endian, which is not supported".to_owned(),
                other => format!("it has version {other}; versions 2 and 3 are supported"),
            };
            return Err(cursor.corrupt(what));
        }
        let tensor_count = cursor.tensor_count()?;
        let key_count = cursor.key_value_count()?;
        let mut values = BTreeMap::new();
        for _ in 0..key_count {
            let key = cursor.string("a key")?;
            let value = cursor.value(&key)?;
            if values.insert(key.clone(), value).is_some() {
                return Err(cursor.corrupt(format!("key `{key}` appears twice")));
            }
        }
        let metadata = Metadata::new(path, values);
        let mut entries = Vec::new();
        for _ in 0..tensor_count {
            entries.push(TableEntry::read(&mut cursor)?);
        }
        let base = cursor.position().next_multiple_of(alignment(&metadata)?);
        let tensors = entries
            .into_iter()
            .map(|entry| entry.place(&cursor, base, data.len(), path, part))
            .collect::<Result<_, _>>()?;
        Ok(Self { metadata, tensors })
    }
}

fn alignment(metadata: &Metadata) -> Result<usize, GgufError> {
    const KEY: &str = "general.alignment";
    match metadata.size(KEY)? {
        None => Ok(ALIGNMENT),
        Some(bytes) if bytes.is_power_of_two() && bytes <= 1 << 20 => Ok(bytes),
        Some(bytes) => Err(metadata.bad(KEY, bytes.to_string(), "a power of two up to 1048576")),
    }
}

/// A tensor table entry as written.
struct TableEntry {
    name: String,
    /// Innermost first, as in the file.
    dimensions: Vec<u64>,
    code: u32,
    offset: u64,
}

impl TableEntry {
    fn read(cursor: &mut Cursor<'_>) -> Result<Self, GgufError> {
        let name = cursor.string("a tensor name")?;
        let count = cursor.u32(&name)?;
        if count > MAX_DIMENSIONS {
            return Err(cursor
                .corrupt(format!("tensor `{name}` has {count} dimensions, at most {MAX_DIMENSIONS} exist")));
        }
        let dimensions = (0..count).map(|_| cursor.u64(&name)).collect::<Result<_, _>>()?;
        Ok(Self { dimensions, code: cursor.u32(&name)?, offset: cursor.u64(&name)?, name })
    }

    fn place(
        self,
        cursor: &Cursor<'_>,
        base: usize,
        file_len: usize,
        path: &Path,
        part: usize,
    ) -> Result<TensorInfo, GgufError> {
        let name = self.name;
        let dtype = TensorType::from_code(self.code).map_err(|known_as| GgufError::TensorType {
            path: path.to_owned(),
            tensor: name.clone(),
            code: self.code,
            name: known_as,
        })?;
        let shape: Option<Vec<usize>> =
            self.dimensions.iter().rev().map(|size| usize::try_from(*size).ok()).collect();
        let elements = shape
            .as_ref()
            .and_then(|shape| shape.iter().try_fold(1_usize, |all, size| all.checked_mul(*size)));
        let (Some(shape), Some(elements)) = (shape, elements) else {
            return Err(
                cursor.corrupt(format!("tensor `{name}` has the impossible shape {:?}", self.dimensions))
            );
        };
        let block = dtype.block_elements();
        if !shape.last().copied().unwrap_or(1).is_multiple_of(block) {
            return Err(cursor.corrupt(format!(
                "tensor `{name}` of type {} has rows of {:?} elements, not a multiple of {block}",
                dtype.name(),
                shape.last()
            )));
        }
        let start = usize::try_from(self.offset).ok().and_then(|offset| base.checked_add(offset));
        let end = (elements / block)
            .checked_mul(dtype.block_bytes())
            .and_then(|bytes| start.and_then(|start| start.checked_add(bytes)));
        match (start, end) {
            (Some(start), Some(end)) if end <= file_len => {
                Ok(TensorInfo { name, shape, dtype, part, range: start..end })
            }
            _ => Err(cursor.corrupt(format!(
                "it ends at byte {file_len}, before tensor `{name}` does; the file is cut short or its table is damaged"
            ))),
        }
    }
}

/// Checks that files belong together, by the `split.*` keys that a splitter writes.
fn check_parts(paths: &[PathBuf], headers: &[Header]) -> Result<(), GgufError> {
    let Some(first) = headers.first() else {
        return Err(GgufError::Corrupt { path: PathBuf::new(), what: "no file was given".to_owned() });
    };
    let mixed = |other: usize, what: String| {
        Err(GgufError::MixedParts { first: paths[0].clone(), other: paths[other].clone(), what })
    };
    let count = first.metadata.size("split.count")?.unwrap_or(1);
    if count > headers.len() {
        return Err(GgufError::MissingPart { part: headers.len() + 1, of: count, path: paths[0].clone() });
    }
    for (index, header) in headers.iter().enumerate().take(if headers.len() > 1 { headers.len() } else { 0 })
    {
        let theirs = header.metadata.size("split.count")?.unwrap_or(1);
        if theirs != headers.len() {
            return mixed(
                index,
                format!("the second says it is one of {theirs} parts, there are {}", headers.len()),
            );
        }
        let number = header.metadata.size("split.no")?;
        if number != Some(index) {
            return mixed(index, format!("the second has number {number:?} inside, its place is {index}"));
        }
        for key in ["general.architecture", "general.name", "split.tensors.count"] {
            let theirs = header.metadata.get(key);
            if let (Some(ours), Some(theirs)) = (first.metadata.get(key), theirs)
                && ours != theirs
            {
                return mixed(index, format!("key `{key}` is {ours:?} in one and {theirs:?} in the other"));
            }
        }
    }
    if let Some(Value::Int(told)) = first.metadata.get("split.tensors.count") {
        let found: usize = headers.iter().map(|header| header.tensors.len()).sum();
        if i128::try_from(found).ok() != Some(*told) {
            let what = format!("they should hold {told} tensors together and hold {found}");
            return mixed(headers.len() - 1, what);
        }
    }
    Ok(())
}
