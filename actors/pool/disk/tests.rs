use std::sync::atomic::{AtomicBool, Ordering};

use super::*;

const FP: Fingerprint = Fingerprint([0xab; 32]);

fn key(n: u8) -> PageKey {
    PageKey { fingerprint: FP, hash: PageHash([n; 16]) }
}

fn content(n: u8) -> Vec<u8> {
    (0..5000_u32).map(|i| (i % 251) as u8 ^ n).collect()
}

fn open(folder: &Path) -> (DiskStore, Vec<Found>) {
    DiskStore::open(folder, "node a", Create::default()).unwrap()
}

fn read_back(store: &mut DiskStore, n: u8) -> Result<Vec<u8>, DiskError> {
    let mut page = vec![0; 5000];
    store.read(&key(n), &mut page).map(|()| page)
}

fn file(folder: &Path, n: u8) -> PathBuf {
    folder.join("ab".repeat(32)).join(format!("{}.page", hex(&[n; 16])))
}

#[test]
fn what_is_written_is_read_also_by_the_next_pool() {
    let folder = tempfile::tempdir().unwrap();
    let (mut store, found) = open(folder.path());
    assert!(found.is_empty());
    store.write(&key(1), None, &content(1)).unwrap();
    store.write(&key(2), Some(PageHash([1; 16])), &content(2)).unwrap();
    assert_eq!(read_back(&mut store, 1).unwrap(), content(1));
    drop(store);
    let (mut store, mut found) = open(folder.path());
    found.sort_by_key(|page| page.key);
    let parents: Vec<_> = found.iter().map(|page| (page.key, page.parent, page.bytes)).collect();
    assert_eq!(parents, [(key(1), None, 5000), (key(2), Some(PageHash([1; 16])), 5000)]);
    assert!(found.iter().all(|page| page.used > 0));
    assert_eq!(read_back(&mut store, 2).unwrap(), content(2));
    store.delete(&key(2)).unwrap();
    assert_eq!(store.delete(&key(2)), Err(DiskError::Missing));
    assert_eq!(read_back(&mut store, 2), Err(DiskError::Missing));
    let wrong_length = store.read(&key(1), &mut [0; 4999]);
    assert_eq!(wrong_length, Err(DiskError::Missing));
}

/// Another process on another machine reads the same bytes.
#[test]
fn the_format_is_what_it_was() {
    let header = Header::of(key(3), Some(PageHash([2; 16])), &content(3));
    let raw = header.encode();
    assert_eq!(Header::decode(&raw), Some(header));
    assert_eq!(raw[..20], *b"ANODE\x00KV\x01\x00\x00\x00\x01\x00\x00\x00\xab\xab\xab\xab");
    assert_eq!(raw[80..88], 5000_u64.to_le_bytes());
    assert_eq!(hex(&raw[88..92]), GOLDEN_CONTENT);
    assert_eq!(hex(&raw[120..]), GOLDEN_HEADER);
    for at in 0..raw.len() {
        let mut damaged = raw;
        damaged[at] ^= 1;
        assert_eq!(Header::decode(&damaged), None, "byte {at}");
    }
}

const GOLDEN_CONTENT: &str = "99135c8c";
const GOLDEN_HEADER: &str = "fd88b5a7d19c4c53";

#[test]
fn a_damaged_page_is_missing_and_deleted() {
    let folder = tempfile::tempdir().unwrap();
    let (mut store, _) = open(folder.path());
    type Damage = fn(&mut Vec<u8>);
    let damages: [Damage; 5] = [
        |raw| raw[header::LEN + 99] ^= 1,
        |raw| raw[50] ^= 1,
        |raw| raw.truncate(header::LEN + 100),
        |raw| raw.push(0),
        |raw| raw.clear(),
    ];
    for damage in damages {
        store.write(&key(1), None, &content(1)).unwrap();
        let path = file(folder.path(), 1);
        let mut raw = fs::read(&path).unwrap();
        damage(&mut raw);
        fs::write(&path, raw).unwrap();
        assert_eq!(read_back(&mut store, 1), Err(DiskError::Missing));
        assert!(!path.exists());
    }
    // The page of another name.
    store.write(&key(1), None, &content(1)).unwrap();
    fs::rename(file(folder.path(), 1), file(folder.path(), 2)).unwrap();
    assert_eq!(read_back(&mut store, 2), Err(DiskError::Missing));
}

#[test]
fn a_start_removes_what_is_broken_and_touches_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let (mut store, _) = open(folder.path());
    for n in 1..=5 {
        store.write(&key(n), None, &content(n)).unwrap();
    }
    drop(store);
    let path = |n| file(folder.path(), n);
    let whole = fs::read(path(1)).unwrap();
    fs::write(path(2), &whole[..whole.len() - 1]).unwrap();
    fs::write(path(3), b"").unwrap();
    fs::rename(path(4), path(4).with_extension("page.tmp")).unwrap();
    fs::write(path(6), &whole).unwrap();
    fs::write(path(7), [0; 4096]).unwrap();
    let broken = [path(2), path(3), path(4).with_extension("page.tmp"), path(6), path(7)];
    let others = [
        path(8),
        path(1).with_file_name("notes.txt"),
        path(1).with_file_name("0123.page"),
        folder.path().join("readme"),
        folder.path().join("AB".repeat(32)).join(format!("{}.page", "00".repeat(16))),
    ];
    for other in &others {
        fs::create_dir_all(other.parent().unwrap()).unwrap();
        fs::write(other, b"not a page of ours at all").unwrap();
    }
    let empty = folder.path().join("cd".repeat(32));
    fs::create_dir(&empty).unwrap();
    let (_store, mut found) = open(folder.path());
    found.sort_by_key(|page| page.key);
    assert_eq!(found.iter().map(|page| page.key).collect::<Vec<_>>(), [key(1), key(5)]);
    for path in broken.iter().chain([&empty]) {
        assert!(!path.exists(), "{}", path.display());
    }
    for path in others {
        assert_eq!(fs::read(&path).unwrap(), b"not a page of ours at all", "{}", path.display());
    }
}

#[test]
fn two_pools_do_not_share_a_folder() {
    let folder = tempfile::tempdir().unwrap();
    let (store, _) = open(folder.path());
    let refused = DiskStore::open(folder.path(), "node b", Create::default()).unwrap_err().to_string();
    let holder = format!("in use by node a (process {})", std::process::id());
    assert!(refused.contains(&holder) && refused.contains(folder.path().to_str().unwrap()), "{refused}");
    drop(store);
    open(folder.path());
    let file = folder.path().join("file");
    fs::write(&file, b"").unwrap();
    let refused = DiskStore::open(&file, "node b", Create::default()).unwrap_err().to_string();
    assert!(refused.contains("cannot be used") && refused.contains("pool.disk"), "{refused}");
}

/// The kernel's own device that is always full.
#[test]
#[cfg(target_os = "linux")]
fn a_full_disk_leaves_nothing_behind() {
    let folder = tempfile::tempdir().unwrap();
    let full = Arc::new(AtomicBool::new(true));
    let create = Create(Arc::new({
        let full = Arc::clone(&full);
        move |path| {
            let file = (Create::default().0)(path)?;
            if full.load(Ordering::Relaxed) {
                return OpenOptions::new().write(true).open("/dev/full");
            }
            Ok(file)
        }
    }));
    let (mut store, _) = DiskStore::open(folder.path(), "node a", create).unwrap();
    assert_eq!(store.write(&key(1), None, &content(1)), Err(DiskError::NoSpace));
    assert_eq!(fs::read_dir(file(folder.path(), 1).parent().unwrap()).unwrap().count(), 0);
    full.store(false, Ordering::Relaxed);
    store.write(&key(1), None, &content(1)).unwrap();
    assert_eq!(read_back(&mut store, 1).unwrap(), content(1));
}

#[test]
fn errors_have_the_kinds_that_the_pool_knows() {
    let of = |kind: ErrorKind| super::kind(&kind.into());
    assert_eq!(of(ErrorKind::QuotaExceeded), DiskError::NoSpace);
    assert_eq!(of(ErrorKind::PermissionDenied), DiskError::Permission);
    assert_eq!(of(ErrorKind::ReadOnlyFilesystem), DiskError::Permission);
    assert_eq!(of(ErrorKind::TimedOut), DiskError::Other);
    // A folder where the file should be.
    let folder = tempfile::tempdir().unwrap();
    let (mut store, _) = open(folder.path());
    fs::create_dir_all(file(folder.path(), 1)).unwrap();
    assert_eq!(store.write(&key(1), None, &content(1)), Err(DiskError::Other));
    assert_eq!(read_back(&mut store, 1), Err(DiskError::Other));
}
