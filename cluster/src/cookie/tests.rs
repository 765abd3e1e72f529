use std::sync::Barrier;

use tempfile::TempDir;

use super::*;

fn folder() -> TempDir {
    tempfile::tempdir().expect("a temporary folder")
}

fn written(folder: &TempDir, text: &[u8], mode: u32) -> PathBuf {
    let path = folder.path().join("cookie");
    fs::write(&path, text).expect("written");
    fs::set_permissions(&path, Permissions::from_mode(mode)).expect("permissions");
    path
}

fn error_of(path: &Path) -> String {
    Cookie::load(Some(path), None, None, true).expect_err("refused").to_string()
}

#[test]
fn an_explicit_file_comes_before_the_variable_and_loses_its_newline() {
    let folder = folder();
    let path = written(&folder, b"from the file\n", 0o600);
    let (cookie, source) = Cookie::load(Some(&path), Some("from the variable"), None, false).expect("loaded");
    assert_eq!(cookie, Cookie::from_text("from the file"));
    assert_eq!(source, CookieSource::File(path));
}

#[test]
fn the_variable_comes_before_the_folder_and_is_not_empty() {
    let folder = folder();
    let (cookie, source) = Cookie::load(None, Some(" secret "), Some(folder.path()), false).expect("loaded");
    assert_eq!((cookie, source), (Cookie::from_text("secret"), CookieSource::Environment));
    assert!(fs::read_dir(folder.path()).expect("listed").next().is_none(), "nothing was made");
    for empty in ["", " \n"] {
        let error = Cookie::load(None, Some(empty), Some(folder.path()), true).expect_err("refused");
        assert!(matches!(error, CookieError::EmptyVariable), "{error}");
    }
}

/// B86: no cluster beyond loopback without a secret that somebody chose.
#[test]
fn beyond_loopback_a_cookie_has_to_be_given() {
    let folder = folder();
    let error = Cookie::load(None, None, Some(folder.path()), false).expect_err("refused").to_string();
    assert!(error.contains("--cookie-file") && error.contains("ACTOR_NODE_COOKIE"), "{error}");
    assert!(fs::read_dir(folder.path()).expect("listed").next().is_none(), "nothing was made");
}

#[test]
fn the_first_use_makes_a_private_file_and_the_second_reads_it() {
    let folder = folder();
    let path = folder.path().join(DEFAULT_FILE);
    let (made, source) = Cookie::load(None, None, Some(folder.path()), true).expect("made");
    assert_eq!(source, CookieSource::Made(path.clone()));
    assert_eq!(fs::metadata(&path).expect("there").permissions().mode() & 0o777, 0o600);
    let text = fs::read_to_string(&path).expect("read");
    assert_eq!(text.trim_end().len(), 2 * NEW_BYTES);
    assert_eq!(fs::read_dir(path.parent().expect("a folder")).expect("listed").count(), 1, "no draft stays");

    let (again, source) = Cookie::load(None, None, Some(folder.path()), true).expect("read");
    assert_eq!((again, source), (made, CookieSource::Default(path)));
}

#[test]
fn nodes_that_make_it_at_once_have_the_same() {
    for _ in 0..20 {
        let folder = folder();
        let barrier = Barrier::new(8);
        let loaded: Vec<_> = std::thread::scope(|scope| {
            let start = || {
                barrier.wait();
                Cookie::load(None, None, Some(folder.path()), true).expect("loaded")
            };
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(start)).collect();
            threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
        });
        assert!(loaded.iter().all(|(cookie, _)| *cookie == loaded[0].0));
        let makers = loaded.iter().filter(|(_, source)| matches!(source, CookieSource::Made(_))).count();
        assert_eq!(makers, 1);
    }
}

#[test]
fn a_file_that_others_can_read_is_refused() {
    let folder = folder();
    for mode in [0o640, 0o604, 0o660, 0o644] {
        let error = error_of(&written(&folder, b"secret", mode));
        assert!(error.contains("chmod 600") && error.contains(&format!("{mode:03o}")), "{error}");
    }
    assert!(Cookie::load(Some(&written(&folder, b"secret", 0o400)), None, None, true).is_ok());
}

#[test]
fn a_file_without_a_cookie_is_refused() {
    let folder = folder();
    for (text, word) in [
        (b"".as_slice(), "empty"),
        (b" \n\t\n", "empty"),
        (&[0xff, 0xfe, b'x'], "not text"),
        (&[b'x'; 4097], "longer than"),
    ] {
        let error = error_of(&written(&folder, text, 0o600));
        assert!(error.contains(word), "{error}");
    }
    assert!(error_of(folder.path()).contains("no regular file"));
    assert!(error_of(&folder.path().join("missing")).contains("missing"));
}

#[test]
fn a_link_to_nowhere_in_the_folder_is_an_error_and_stays() {
    let folder = folder();
    let path = folder.path().join(DEFAULT_FILE);
    fs::create_dir_all(path.parent().expect("a folder")).expect("made");
    std::os::unix::fs::symlink("/nowhere/cookie", &path).expect("linked");
    let error = Cookie::load(None, None, Some(folder.path()), true).expect_err("refused");
    assert!(matches!(error, CookieError::File { .. }), "{error}");
}

#[test]
fn a_cookie_shows_nothing_and_its_keys_differ_by_purpose() {
    let cookie = Cookie::from_text("secret");
    assert_eq!(format!("{cookie:?}"), "Cookie(..)");
    assert_ne!(cookie.key("one"), cookie.key("another"));
    assert_ne!(cookie.key("one"), Cookie::from_text("other").key("one"));
    assert_eq!(cookie.key("one"), Cookie::from_text("secret").key("one"));
}
