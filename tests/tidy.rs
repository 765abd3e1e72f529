//! What the code must look like: who may depend on whom, how long a file may be, which calls are banned.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use cargo_metadata::{DependencyKind, MetadataCommand, Package};

/// Lines of code that a file may have; blank lines, comments and tests are not counted.
const LONGEST: usize = 500;
/// As many may a file have that drives cores in the simulator: what is longer decides something, and that belongs to a core.
const LONGEST_DRIVER: usize = 100;
/// Where those are.
const DRIVERS: [&str; 2] = ["sim/src/node", "sim/src/world"];
/// What stands at the top besides dotfiles and `*.md`.
const TOP: [&str; 13] = [
    "Cargo.toml",
    "Cargo.lock",
    "LICENSE",
    "clippy.toml",
    "deny.toml",
    "rust-toolchain.toml",
    "rustfmt.toml",
    "actors",
    "cluster",
    "config",
    "engine",
    "policies",
    "sim",
];
/// The crates of the project, each with those it may depend on.
const LAYERS: [(&str, &[&str]); 6] = [
    ("config", &[]),
    ("policies", &["config"]),
    ("cluster", &["config", "policies"]),
    ("engine", &["config", "policies"]),
    ("sim", &["config", "policies"]),
    ("actor-node", &["config", "policies", "cluster", "engine", "sim"]),
];
/// What decides nothing may not reach, not even through others: they have clocks, threads and sockets.
const IMPURE: [&str; 8] =
    ["tokio", "ractor", "ractor_cluster", "axum", "hyper", "reqwest", "mistralrs-core", "candle-core"];

/// Where cargo runs a package's tests. Not `CARGO_MANIFEST_DIR` at compile time: clones that share a target folder share
/// their test binaries, and the path would be that of the clone which compiled them.
fn root() -> &'static Path {
    Path::new(".")
}

fn cargo() -> Command {
    let mut command = Command::new(option_env!("CARGO").unwrap_or("cargo"));
    command.current_dir(root());
    command
}

/// Every file that is tracked or could be added, relative to the root.
fn files() -> Vec<PathBuf> {
    let out = Command::new("git")
        .args(["-c", "safe.directory=*", "ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(root())
        .output()
        .expect("git runs");
    assert!(out.status.success(), "git ls-files: {}", String::from_utf8_lossy(&out.stderr));
    let names = String::from_utf8(out.stdout).unwrap();
    let files: Vec<PathBuf> = names
        .split('\0')
        .filter(|n| !n.is_empty())
        .map(PathBuf::from)
        .filter(|f| root().join(f).is_file())
        .collect();
    assert!(files.len() > 50, "git lists the project's files: {files:?}");
    files
}

/// Text files with their text.
fn texts() -> Vec<(PathBuf, String)> {
    files()
        .into_iter()
        .filter_map(|file| {
            let bytes = std::fs::read(root().join(&file)).unwrap();
            Some((file, String::from_utf8(bytes).ok()?))
        })
        .collect()
}

fn is_test(file: &Path) -> bool {
    file.file_stem().is_some_and(|stem| stem == "tests" || stem == "testing")
        || file.iter().any(|part| part == "tests" || part == "benches" || part == "examples")
}

/// Rust files that are not tests, each with its code: without comments and without items for tests.
fn code() -> Vec<(PathBuf, Vec<(usize, String)>)> {
    texts()
        .into_iter()
        .filter(|(file, _)| file.extension().is_some_and(|e| e == "rs") && !is_test(file))
        .map(|(file, text)| {
            let mut skips = Skipper::default();
            let lines = text
                .lines()
                .enumerate()
                .map(|(i, line)| (i + 1, without_comment(line).trim_end().to_owned()))
                .filter(|(_, line)| !skips.skips(line) && !line.trim().is_empty())
                .collect();
            (file, lines)
        })
        .collect()
}

/// Finds the lines of items under `#[cfg(test)]`.
#[derive(Default)]
struct Skipper {
    inside: bool,
    opened: bool,
    depth: usize,
}

impl Skipper {
    fn skips(&mut self, line: &str) -> bool {
        if !self.inside {
            *self = Self { inside: line.trim_start().starts_with("#[cfg(test)]"), ..Self::default() };
            return self.inside;
        }
        let count = |c: char| line.matches(c).count();
        let opens = count('{') + count('(') + count('[');
        self.opened |= line.contains('{');
        self.depth = (self.depth + opens).saturating_sub(count('}') + count(')') + count(']'));
        let ends = line.ends_with(';') || line.ends_with(',') || (self.opened && line.ends_with('}'));
        if self.depth == 0 && ends {
            self.inside = false;
        }
        true
    }
}

/// The line up to `//`, unless that stands in a text (a URL, say).
fn without_comment(line: &str) -> &str {
    let mut quoted = false;
    let mut previous = ' ';
    for (at, c) in line.char_indices() {
        match c {
            '"' if previous != '\\' && previous != '\'' => quoted = !quoted,
            '/' if !quoted && line[at..].starts_with("//") => return &line[..at],
            _ => {}
        }
        previous = c;
    }
    line
}

/// Fails with every offence, so that one run shows all of them.
fn none(what: &str, offences: &[String]) {
    assert!(offences.is_empty(), "{what}:\n{}", offences.join("\n"));
}

/// Lines of code for which `wrong` holds.
fn lines_where(wrong: impl Fn(&Path, &str) -> bool) -> Vec<String> {
    let mut found = Vec::new();
    for (file, lines) in code() {
        for (number, line) in lines {
            if wrong(&file, &line) {
                found.push(format!("{}:{number}: {}", file.display(), line.trim()));
            }
        }
    }
    found
}

fn packages() -> Vec<Package> {
    let metadata = MetadataCommand::new()
        .manifest_path(root().join("Cargo.toml"))
        .no_deps()
        .other_options(["--offline".to_owned(), "--locked".to_owned()])
        .exec()
        .expect("cargo metadata");
    metadata.packages
}

#[test]
fn crates_depend_in_one_direction_only() {
    let allowed: BTreeMap<&str, &[&str]> = LAYERS.into_iter().collect();
    let packages = packages();
    let names: BTreeSet<String> = packages.iter().map(|p| p.name.to_string()).collect();
    assert_eq!(names, allowed.keys().map(|n| (*n).to_owned()).collect(), "the crates of the workspace");
    let mut offences = Vec::new();
    for package in &packages {
        let name = package.name.to_string();
        for dependency in &package.dependencies {
            let ours = names.contains(&dependency.name);
            if ours && !allowed[name.as_str()].contains(&dependency.name.as_str()) {
                offences.push(format!("{name} -> {}", dependency.name));
            }
            if dependency.name == "bincode" && dependency.kind == DependencyKind::Normal && name != "cluster"
            {
                offences.push(format!("{name} -> bincode"));
            }
        }
    }
    none("dependencies that the layers forbid", &offences);
}

#[test]
fn what_decides_is_pure() {
    let mut offences = Vec::new();
    for name in ["config", "policies", "sim"] {
        let out = cargo()
            .args([
                "tree",
                "--offline",
                "--locked",
                "-e",
                "normal,build",
                "--prefix",
                "none",
                "--format",
                "{p}",
                "-p",
                name,
            ])
            .output()
            .unwrap();
        assert!(out.status.success(), "cargo tree: {}", String::from_utf8_lossy(&out.stderr));
        let tree = String::from_utf8(out.stdout).unwrap();
        let reached: BTreeSet<&str> = tree.lines().filter_map(|line| line.split(' ').next()).collect();
        assert!(reached.contains(name), "{tree}");
        offences
            .extend(IMPURE.iter().filter(|i| reached.contains(**i)).map(|i| format!("{name} reaches {i}")));
    }
    none("crates that must not be reached", &offences);
    let clocks =
        ["Instant::now", "SystemTime::now", "std::thread", "std::net", "std::fs", "HashMap", "HashSet"];
    none(
        "clocks, input, output and unordered maps in the cores",
        &lines_where(|file, line| {
            let simulator_cli = file.starts_with("sim") && line.contains("std::fs");
            let pure = file.starts_with("policies/src") || file.starts_with("sim/src");
            // With a hasher of our own, clippy asks for the reason; it is the random one that no replay survives.
            let fixed = line.contains("HashMap<") && line.contains("BuildHasherDefault<");
            pure && !simulator_cli && !fixed && clocks.iter().any(|word| line.contains(word))
        }),
    );
}

#[test]
fn the_top_level_is_what_the_design_says() {
    let mut offences = BTreeSet::new();
    for file in files() {
        let first = file.iter().next().unwrap().to_str().unwrap().to_owned();
        let known = first.starts_with('.') || TOP.contains(&first.as_str()) || first == "tests";
        let document = file.components().count() == 1 && first.ends_with(".md");
        if !known && !document {
            offences.insert(first);
        }
    }
    none("unexpected at the top level", &offences.into_iter().collect::<Vec<_>>());
    for name in
        TOP.iter().chain(&["tests", "README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md"])
    {
        assert!(root().join(name).exists(), "{name} is missing");
    }
}

#[test]
fn modules_are_files_beside_their_folder() {
    let offences: Vec<String> = files()
        .iter()
        .filter(|file| file.file_name().is_some_and(|name| name == "mod.rs"))
        .map(|file| file.display().to_string())
        .collect();
    none("files named mod.rs", &offences);
}

#[test]
fn files_are_short() {
    let long: Vec<String> = code()
        .iter()
        .filter(|(_, lines)| lines.len() > LONGEST)
        .map(|(file, lines)| format!("{}: {} lines", file.display(), lines.len()))
        .collect();
    none("files with too many lines of code", &long);
}

#[test]
fn drivers_of_the_simulator_are_thin() {
    let code = code();
    let is_driver = |file: &Path| DRIVERS.iter().any(|folder| file.with_extension("").starts_with(folder));
    let drivers: Vec<_> = code.iter().filter(|(file, _)| is_driver(file)).collect();
    for folder in DRIVERS {
        let many = drivers.iter().filter(|(file, _)| file.starts_with(folder)).count();
        assert!(many > 3, "{folder} has {many} files: are its drivers elsewhere?");
    }
    let long: Vec<String> = drivers
        .iter()
        .filter(|(_, lines)| lines.len() > LONGEST_DRIVER)
        .map(|(file, lines)| format!("{}: {} lines", file.display(), lines.len()))
        .collect();
    none("drivers with too many lines of code", &long);
}

#[test]
fn nothing_is_left_undone_or_unwrapped() {
    let banned = [".unwrap()", "todo!(", "unimplemented!(", "dbg!("];
    none("banned calls", &lines_where(|_, line| banned.iter().any(|call| line.contains(call))));
    none(
        "allowed lints without a reason (use #[expect(.., reason = ..)])",
        &lines_where(|_, line| line.contains("#[allow(") || line.contains("#![allow(")),
    );
}

#[test]
fn the_environment_is_read_in_one_place() {
    let readers = ["config/src/load.rs", "actors/main.rs"];
    none(
        "readers of the environment",
        &lines_where(|file, line| {
            let reads =
                line.contains("env::var") || line.contains("env::args") || line.contains("env::set_var");
            reads && !readers.iter().any(|reader| file == Path::new(reader))
        }),
    );
}

#[test]
fn bincode_is_named_in_one_file() {
    none(
        "users of bincode",
        &lines_where(|file, line| line.contains("bincode") && file != Path::new("cluster/src/wire/codec.rs")),
    );
}

#[test]
fn tests_wait_on_states_and_not_on_time() {
    let words = [concat!("thread::sl", "eep"), concat!("time::sl", "eep(")];
    let mut offences = Vec::new();
    for (file, text) in texts() {
        if file.extension().is_some_and(|e| e == "rs") && is_test(&file) {
            // On a paused clock a sleep costs no time; under a time limit it is a poll for a state.
            let lines: Vec<&str> = text.lines().collect();
            let paused = text.contains("start_paused");
            let polls =
                |i: usize| lines[i..lines.len().min(i + 8)].iter().any(|line| line.contains("timeout("));
            for (i, line) in lines.iter().enumerate() {
                if words.iter().any(|word| line.contains(word)) && !paused && !polls(i) {
                    offences.push(format!("{}:{}: {}", file.display(), i + 1, line.trim()));
                }
            }
        }
    }
    none("sleeps in tests", &offences);
}

#[test]
fn every_figure_is_described_and_used() {
    let metrics = std::fs::read_to_string(root().join("actors/metrics.rs")).unwrap();
    let names: Vec<&str> = metrics
        .lines()
        .filter_map(|line| {
            line.trim_start().strip_prefix("pub const ")?.split_once(": &str").map(|(name, _)| name)
        })
        .collect();
    assert!(names.len() > 15, "{names:?}");
    let code = code();
    let uses = |name: &str| {
        let word = |line: &str, text: &str| {
            line.match_indices(text).any(|(at, _)| {
                let part = |c: char| c.is_ascii_alphanumeric() || c == '_';
                !line[at + text.len()..].starts_with(part) && !line[..at].ends_with(part)
            })
        };
        code.iter().any(|(file, lines)| {
            file.starts_with("actors")
                && file != Path::new("actors/metrics.rs")
                && lines.iter().any(|(_, line)| word(line, name) && !line.trim_start().starts_with("use "))
        })
    };
    let mut offences = Vec::new();
    for name in names {
        let described = ["counter", "gauge", "histogram"]
            .iter()
            .any(|k| metrics.contains(&format!("describe_{k}!({name},")));
        if !described {
            offences.push(format!("{name} is not described"));
        }
        if !uses(name) {
            offences.push(format!("{name} is never recorded"));
        }
    }
    none("figures", &offences);
}

#[test]
fn nothing_names_this_machine() {
    let homes = [concat!("/ro", "ot/"), concat!("/ho", "me/"), concat!("/Us", "ers/"), concat!("/wo", "rk/")];
    let example = concat!("/ho", "me/someone");
    let mirrors = [
        "index-url =",
        "index-url http",
        "index-url=http",
        "replace-with",
        "find-links http",
        concat!("art", "ifactory"),
    ];
    let mut offences = Vec::new();
    for (file, text) in texts() {
        let this = file == Path::new("tests/tidy.rs");
        for (i, line) in text.lines().enumerate() {
            let bare = line.replace(example, "");
            let home = homes.iter().any(|home| names_path(&bare, home));
            let mirror = !this && mirrors.iter().any(|word| line.contains(word));
            if home || mirror || private_host(line) {
                offences.push(format!("{}:{}: {}", file.display(), i + 1, line.trim()));
            }
        }
    }
    none("paths and hosts of one machine", &offences);
}

/// Whether `path` begins an absolute path in the line rather than continuing one (`site/home/`).
fn names_path(line: &str, path: &str) -> bool {
    line.match_indices(path)
        .any(|(at, _)| !line[..at].ends_with(|c: char| c.is_ascii_alphanumeric() || "_-.}$~*".contains(c)))
}

/// Whether a URL in the line has a host that only some network knows: an address that is not local, a private suffix or
/// a bare name with a dash or digits, as machines have.
fn private_host(line: &str) -> bool {
    line.match_indices("://").any(|(at, _)| {
        let rest = &line[at + 3..];
        let end =
            rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '.' && c != '-').unwrap_or(rest.len());
        let host = &rest[..end];
        let numeric = host.split('.').count() == 4 && host.split('.').all(|part| part.parse::<u8>().is_ok());
        let local = host.starts_with("127.") || host == "0.0.0.0";
        let private = [".internal", ".local", ".lan", ".corp", ".intranet"].iter().any(|s| host.ends_with(s));
        (numeric && !local) || private
    })
}

/// Keys that are read by a method of their section.
const READ_BY: [(&str, &str); 10] = [
    ("auth.keys_file", "api_keys"),
    ("http.listen", "listen_address"),
    ("cluster.listen", "listen_address"),
    ("cluster.advertise", "advertised"),
    ("cluster.kv_listen", "kv_listen_address"),
    ("cluster.kv_advertise", "kv_advertised"),
    ("cluster.seeds", "all_seeds"),
    ("cluster.controller", "all_seeds"),
    ("cluster.gateways", "all_seeds"),
    ("pool.advertise", "advertised"),
];

#[test]
fn every_key_of_the_configuration_is_read() {
    let tree = config::Config::default().to_toml().unwrap();
    let mut keys = Vec::new();
    let mut section = String::new();
    for line in tree.lines() {
        if let Some(name) = line.strip_prefix('[').and_then(|l| l.strip_suffix(']')) {
            section = name.to_owned();
        } else if let Some((key, _)) = line.split_once(" = ") {
            keys.push((section.clone(), key.replace('-', "_")));
        }
    }
    assert!(keys.len() > 40, "{tree}");
    let code = code();
    let mut offences = Vec::new();
    for (section, key) in keys {
        // By its section, or by what functions call the one section that they are given.
        let section_name = section.rsplit('.').next().unwrap_or_default().replace('-', "_");
        let mut names =
            [section_name.as_str(), "config", "limits"].map(|owner| format!("{owner}.{key}")).to_vec();
        // Some are read by a method that knows their defaults.
        let whole = format!("{section}.{key}");
        names.extend(READ_BY.iter().filter(|(k, _)| *k == whole).map(|(_, method)| format!(".{method}")));
        let read = code.iter().filter(|(file, _)| !file.starts_with("config")).any(|(_, lines)| {
            lines.iter().any(|(_, line)| {
                names.iter().any(|name| {
                    line.match_indices(name.as_str()).any(|(at, _)| {
                        let rest = &line[at + name.len()..];
                        let method = READ_BY.iter().any(|(_, m)| name.strip_prefix('.') == Some(m));
                        method == rest.starts_with('(')
                            && !rest.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_')
                    })
                })
            })
        });
        if !read {
            offences.push(format!("{section}.{}", key.replace('_', "-")));
        }
    }
    none("keys that nothing reads", &offences);
}
