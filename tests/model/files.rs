//! Model files: what is served from a lone file, and what is refused at start, by name.

use std::fs;
use std::path::Path;

use serde_json::json;

use super::{CHAT, COMPLETIONS, chat, completion, node};
use crate::harness::http::only;
use crate::harness::model::default_file;
use crate::harness::node::{Node, binary};

/// Starts a node that has to end before it is ready; gives what it said.
fn refused(args: &[&str]) -> String {
    let out =
        binary().args(["--http-listen", "127.0.0.1:0", "--kv-pages", "16"]).args(args).output().unwrap();
    let text = String::from_utf8(out.stderr).unwrap();
    assert!(out.status.code().is_some_and(|code| code != 0), "{}: {text}", out.status);
    assert!(!text.contains("panicked") && !text.contains("model is ready"), "{text}");
    text
}

/// B98: quantisation types that are not supported are named with file, tensor and code, before the node is ready.
#[test]
fn b98_unsupported_types_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let tensor = "blk.3.ffn_up.weight";
    let mut bytes = fs::read(default_file()).unwrap();
    // Name, count of dimensions (two), their sizes, then the type.
    let at = find(&bytes, tensor.as_bytes()) + tensor.len() + 4 + 2 * 8;
    assert_eq!(bytes[at..at + 4], 3_u32.to_le_bytes(), "Q4_1");
    for (code, name) in [(20_u32, "IQ4_NL"), (23, "IQ4_XS"), (39, "MXFP4"), (255, "255")] {
        bytes[at..at + 4].copy_from_slice(&code.to_le_bytes());
        let file = dir.path().join("patched.gguf");
        fs::write(&file, &bytes).unwrap();
        let text = refused(&["--model", &format!("file:{}", file.display())]);
        for word in ["patched.gguf", tensor, name, &code.to_string(), "Q4_1", "Q8_0"] {
            assert!(text.contains(word), "{word} in {text}");
        }
    }
}

fn find(bytes: &[u8], text: &[u8]) -> usize {
    bytes.windows(text.len()).position(|window| window == text).expect("the file has the text")
}

/// B100: keys that are missing, and files that are none, are named.
#[test]
fn b100_missing_keys_and_broken_files_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let good = fs::read(default_file()).unwrap();
    let refused = |name: &str, bytes: &[u8]| {
        let file = dir.path().join(name);
        fs::write(&file, bytes).unwrap();
        let text = refused(&["--model", &format!("file:{}", file.display())]);
        assert!(text.contains(name), "{text}");
        text
    };
    for key in
        ["llama.block_count", "llama.embedding_length", "tokenizer.ggml.tokens", "general.architecture"]
    {
        let mut bytes = good.clone();
        let at = find(&bytes, key.as_bytes());
        bytes[at] = b'X';
        let text = refused("renamed key.gguf", &bytes);
        assert!(text.contains(key), "{key} in {text}");
    }
    let mut other = good.clone();
    let at = find(&other, b"general.architecture") + "general.architecture".len() + 4 + 8;
    assert_eq!(&other[at..at + 5], b"llama");
    other[at..at + 5].copy_from_slice(b"mamba");
    let text = refused("mamba.gguf", &other);
    for word in ["mamba", "llama", "qwen2", "qwen3"] {
        assert!(text.contains(word), "{word} in {text}");
    }
    refused("cut.gguf", &good[..good.len() / 2]);
    refused("empty.gguf", b"");
    refused("text.gguf", b"this is no model");
}

/// B100: a lone file serves, whatever its path looks like, with no network and no cache.
#[test]
fn b100_a_lone_file_serves() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("a folder with spaces");
    fs::create_dir(&folder).unwrap();
    let link = folder.join("linked model.gguf");
    std::os::unix::fs::symlink(default_file(), &link).unwrap();
    let source = format!("file:{}", link.display());
    let nowhere = dir.path().join("no cache").to_str().unwrap().to_owned();
    // No program can be found, so that nothing can be fetched either.
    let node = Node::spawn_in(
        &["--model", &source, "--kv-pages", "64"],
        &[("PATH", nowhere.as_str()), ("ACTOR_NODE_CACHE_DIR", nowhere.as_str())],
    );
    let node = node.until_ready();
    let expected = only(&super::node().client().ok(CHAT, &chat("Say hello.", 8)));
    assert_eq!(only(&node.client().ok(CHAT, &chat("Say hello.", 8))), expected);
    let id = node.client().get("/v1/models").unwrap().json()["data"][0]["id"].as_str().unwrap().to_owned();
    assert!(id.contains("linked model") || id.contains("SmolLM2"), "{id}");
    assert!(!Path::new(&nowhere).exists(), "nothing was cached");
}

/// B101: a template of one's own replaces the model's; what it refuses is a 400 with its reason, and completions go on.
#[test]
fn b101_a_chat_template_of_one_s_own() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("template.jinja");
    fs::write(
        &file,
        "{%- if messages[0]['role'] == 'system' %}{{ raise_exception('no system messages, please') }}{% endif -%}\
         {%- for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant:",
    )
    .unwrap();
    let node = Node::ready_with(&["--kv-pages", "64"], &[("MODEL__CHAT_TEMPLATE", file.to_str().unwrap())]);
    let client = node.client();
    let answer = client.ok(CHAT, &chat("Hello", 8));
    let same = client.ok(COMPLETIONS, &completion("user: Hello\nassistant:", 8));
    assert_eq!(only(&answer), only(&same));
    assert_eq!(answer["usage"]["prompt_tokens"], same["usage"]["prompt_tokens"]);
    let mut refused = chat("x", 8);
    refused["messages"] =
        json!([{"role": "system", "content": "Be brief"}, {"role": "user", "content": "Hello"}]);
    for stream in [false, true] {
        refused["stream"] = stream.into();
        let error = client.post(CHAT, &refused).error(400);
        assert_eq!(error["param"], "messages");
        assert!(error["message"].as_str().unwrap().contains("no system messages, please"), "{error}");
    }
    client.ok(COMPLETIONS, &completion("Hello", 2));
}

/// B104: SmolLM2 has no begin token of its own to add, and a template that writes tokens does so once: both ways in have
/// the same prompt.
#[test]
fn b104_both_ways_in_have_the_same_prompt() {
    let client = node().client();
    let request = chat("Hello there", 1);
    let tokens = client.ok("/v1/tokenize", &json!({"messages": request["messages"]}));
    let ids: Vec<u32> = serde_json::from_value(tokens["tokens"].clone()).unwrap();
    let text = super::detokenize(node(), &ids);
    assert_eq!(text.matches("<|im_start|>system").count(), 1, "{text}");
    assert_eq!(super::tokenize(node(), &text), ids);
    let chat_tokens = client.ok(CHAT, &request)["usage"]["prompt_tokens"].clone();
    assert_eq!(client.ok(COMPLETIONS, &completion(text, 1))["usage"]["prompt_tokens"], chat_tokens);
}
