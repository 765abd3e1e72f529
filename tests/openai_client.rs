//! The official Python client against a started node: what it does without complaint is what users can do.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::harness::node::Node;

/// The client's version; a later one may ask for more than we have.
const CLIENT: &str = "openai==3.57.0";
const SCRIPT: &str = "tests/openai_client/check.py";

/// A folder with the client in it, kept between runs.
///
/// # Panics
/// When it cannot be installed: the test fails then and is not skipped.
fn client() -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(CLIENT.replace("==", "-"));
    let works = |folder: &Path| {
        let import = Command::new("python3").args(["-c", "import openai"]).env("PYTHONPATH", folder).output();
        import.expect("python3 runs").status.success()
    };
    if !works(&folder) {
        // Installed aside and renamed, so that an interrupted install is not taken for a good one.
        let aside = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let out = Command::new("python3")
            .args([
                "-m",
                "pip",
                "install",
                "--disable-pip-version-check",
                "--no-input",
                "--quiet",
                "--target",
            ])
            .arg(aside.path())
            .arg(CLIENT)
            .output()
            .expect("python3 runs");
        assert!(out.status.success(), "pip install {CLIENT}: {}", String::from_utf8_lossy(&out.stderr));
        if folder.exists() {
            std::fs::remove_dir_all(&folder).unwrap();
        }
        std::fs::rename(aside.keep(), &folder).unwrap();
        assert!(works(&folder), "{CLIENT} is installed and cannot be imported");
    }
    folder
}

#[test]
fn the_official_python_client_works() {
    let client = client();
    let node = Node::ready(&["--kv-pages", "256", "--max-context", "2048"]);
    let out = Command::new("python3")
        .args([SCRIPT, &node.base])
        .env("PYTHONPATH", client)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env_remove("OPENAI_API_KEY")
        .env_remove("OPENAI_BASE_URL")
        .output()
        .expect("python3 runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(out.status.success(), "{}{}", text(&out.stdout), text(&out.stderr));
    assert!(text(&out.stdout).ends_with("all checks passed\n"), "{}", text(&out.stdout));
    node.assert_idle();
}
