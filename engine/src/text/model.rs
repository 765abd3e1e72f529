//! The tokenizer with its byte table, control tokens and chat template.

use std::borrow::Cow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use tokenizers::Tokenizer;

use super::bpe::ByteLevelBpe;
use super::bytes::{Alphabet, TokenBytes};
use super::chat::{self, Rendered, TemplateTokens};
use super::detokenize;
use super::segment::{Segment, Segmenter, SpecialToken};
use super::template::Templates;
use super::{ChatError, ChatMessage, ChatOptions, Detokenizer, TextDescriptor, TextError};

/// Whether the strings of control tokens in a text become those tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AllowSpecial {
    /// `<|im_end|>` in the text is the control token: for text of a template or of a trusted caller.
    Yes,
    /// `<|im_end|>` in the text is ten ordinary characters: for text of a user.
    No,
}

/// Text handling of one model. Immutable and shared by all streams.
#[derive(Debug)]
pub struct TextModel {
    descriptor: TextDescriptor,
    /// Never makes control tokens.
    tokenizer: Tokenizer,
    /// For text after a control token, where the tokenizer treats the start of a text in another way.
    inner_tokenizer: Option<Tokenizer>,
    /// Gives the same ids sooner, where the tokenizer is of the common kind.
    bpe: Option<ByteLevelBpe>,
    table: Arc<TokenBytes>,
    segmenter: Segmenter,
    /// What the tokenizer makes of characters it has no token for; a control token that text may give.
    unknown: Option<u32>,
    templates: Templates,
    template_tokens: TemplateTokens,
    warnings: Vec<String>,
}

impl TextModel {
    /// Builds it; the same descriptor gives the same ids and texts in every process. Takes up to a second for a large
    /// vocabulary.
    ///
    /// # Errors
    /// A tokenizer that cannot be read, or of a kind whose tokens have no known bytes.
    pub fn from_descriptor(descriptor: TextDescriptor) -> Result<Self, TextError> {
        let failed = |what: String| TextError::Tokenizer { origin: "the model".to_owned(), what };
        let json: serde_json::Value = serde_json::from_str(&descriptor.tokenizer_json)
            .map_err(|error| failed(format!("it is not JSON: {error}")))?;
        let load = |json: &str| -> Result<Tokenizer, TextError> {
            let mut tokenizer: Tokenizer = json.parse().map_err(|error| failed(format!("{error}")))?;
            // Special tokens are encoded as text: they are cut out before.
            tokenizer.set_encode_special_tokens(true);
            tokenizer.with_truncation(None).map_err(|error| failed(format!("{error}")))?;
            tokenizer.with_padding(None);
            Ok(tokenizer)
        };
        let tokenizer = load(&descriptor.tokenizer_json)?;
        let inner_tokenizer = inner_variant(&json).map(|json| load(&json.to_string())).transpose()?;
        let added = tokenizer.get_added_tokens_decoder();
        let text_of = |id: u32| match added.get(&id) {
            Some(token) => Some((token.content.clone(), true)),
            None => tokenizer.id_to_token(id).map(|text| (text, false)),
        };
        let alphabet = Alphabet::of(&json).map_err(failed)?;
        let table = TokenBytes::new(alphabet, descriptor.vocab_size, text_of, &descriptor.special_ids)
            .map_err(failed)?;
        let specials = descriptor
            .special_ids
            .iter()
            .filter_map(|id| {
                let (lstrip, rstrip) =
                    added.get(id).map_or((false, false), |token| (token.lstrip, token.rstrip));
                Some(SpecialToken { id: *id, text: text_of(*id)?.0, lstrip, rstrip })
            })
            .collect();
        let token_text = |id: Option<u32>| id.and_then(text_of).map(|(text, _)| text);
        let template_tokens =
            TemplateTokens { bos: token_text(descriptor.bos), eos: token_text(descriptor.eos) };
        let templates = Templates::new(&descriptor.templates);
        let unknown = json["model"]["unk_token"].as_str().and_then(|text| tokenizer.token_to_id(text));
        let warnings = descriptor.warnings.iter().cloned().chain(templates.warnings()).collect();
        Ok(Self {
            bpe: ByteLevelBpe::of(&json),
            tokenizer,
            inner_tokenizer,
            table: Arc::new(table),
            segmenter: Segmenter::new(specials),
            unknown,
            templates,
            template_tokens,
            warnings,
            descriptor,
        })
    }

    /// What it was built from.
    pub fn descriptor(&self) -> &TextDescriptor {
        &self.descriptor
    }

    /// Things the operator should know, to be logged once at start.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Token ids of a text. With `add_bos`, a model that wants a begin token gets exactly one, whether or not the
    /// text starts with it. May be empty (an empty text and no begin token): callers must refuse that.
    ///
    /// # Errors
    /// When the tokenizer fails on the text.
    pub fn encode(&self, text: &str, special: AllowSpecial, add_bos: bool) -> Result<Vec<u32>, TextError> {
        let segments = match special {
            AllowSpecial::Yes => self.segmenter.split(text),
            AllowSpecial::No if text.is_empty() => Vec::new(),
            AllowSpecial::No => vec![Segment::Plain(text)],
        };
        self.encode_segments(&segments, None, add_bos)
    }

    /// Renders messages and tokenizes them: control tokens come from the template only, never from the messages.
    ///
    /// # Errors
    /// Whatever is wrong with the messages or the template.
    pub fn encode_chat(
        &self,
        messages: &[ChatMessage],
        options: &ChatOptions,
    ) -> Result<Vec<u32>, ChatError> {
        let Rendered { text, marker } = self.render(messages, options)?;
        self.encode_segments(&self.segmenter.split(&text), Some(marker), true)
            .map_err(|error| ChatError::Encode(error.to_string()))
    }

    /// The text that [`encode_chat`](Self::encode_chat) tokenizes.
    ///
    /// # Errors
    /// As [`encode_chat`](Self::encode_chat).
    pub fn render_chat(&self, messages: &[ChatMessage], options: &ChatOptions) -> Result<String, ChatError> {
        let Rendered { text, marker } = self.render(messages, options)?;
        Ok(without(&text, Some(marker)).into_owned())
    }

    /// Bytes of a token, control tokens included; empty for an id outside the vocabulary.
    pub fn token_bytes(&self, id: u32) -> &[u8] {
        self.table.get(id)
    }

    /// Text of a token sequence from its start; invalid bytes become U+FFFD.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> String {
        detokenize::decode(&self.table, ids, skip_special)
    }

    /// A detokenizer for what follows `prompt`.
    pub fn detokenizer(&self, prompt: &[u32]) -> Detokenizer {
        Detokenizer::new(Arc::clone(&self.table), prompt)
    }

    /// A detokenizer in the state after `sent` tokens that followed `prompt`, for a stream that goes on elsewhere.
    pub fn resume_detokenizer(&self, prompt: &[u32], sent: &[u32]) -> Detokenizer {
        let mut detokenizer = self.detokenizer(prompt);
        let mut shown = String::new();
        for id in sent {
            detokenizer.push(*id, &mut shown);
            shown.clear();
        }
        detokenizer
    }

    /// Token ids run from 0 to this, exclusive.
    pub fn vocab_size(&self) -> usize {
        self.descriptor.vocab_size
    }

    /// Tokens that end a generation, ascending; may be empty.
    pub fn end_ids(&self) -> &[u32] {
        &self.descriptor.end_ids
    }

    /// The begin token, if prompts of this model start with one.
    pub fn begin_id(&self) -> Option<u32> {
        self.descriptor.bos.filter(|_| self.descriptor.add_bos)
    }

    /// Whether a token is a control token.
    pub fn is_special(&self, id: u32) -> bool {
        self.table.is_special(id)
    }

    /// Whether the model has a chat template (which may still be invalid).
    pub fn has_chat_template(&self) -> bool {
        !self.templates.is_empty()
    }

    fn render(&self, messages: &[ChatMessage], options: &ChatOptions) -> Result<Rendered, ChatError> {
        chat::render(&self.templates, &self.template_tokens, &self.segmenter, messages, options)
    }

    fn encode_segments(
        &self,
        segments: &[Segment<'_>],
        marker: Option<char>,
        add_bos: bool,
    ) -> Result<Vec<u32>, TextError> {
        let mut ids = Vec::new();
        if add_bos
            && let Some(begin) = self.begin_id()
            && segments.first() != Some(&Segment::Special(begin))
        {
            ids.push(begin);
        }
        for (at, segment) in segments.iter().enumerate() {
            match segment {
                Segment::Special(id) => ids.push(*id),
                Segment::Plain(text) => {
                    let tokenizer =
                        self.inner_tokenizer.as_ref().filter(|_| at > 0).unwrap_or(&self.tokenizer);
                    self.encode_plain(tokenizer, &without(text, marker), &mut ids)?;
                }
            }
        }
        Ok(ids)
    }

    fn encode_plain(&self, tokenizer: &Tokenizer, text: &str, ids: &mut Vec<u32>) -> Result<(), TextError> {
        let first = ids.len();
        self.encode_words(tokenizer, text, ids)?;
        if ids[first..].iter().all(|id| self.is_textual(*id)) {
            return Ok(());
        }
        // A vocabulary can be such that ordinary merges end in a control token; then its characters go in singly.
        for id in ids.split_off(first) {
            if self.is_textual(id) {
                ids.push(id);
                continue;
            }
            for char in String::from_utf8_lossy(self.table.get(id)).chars() {
                let mut single = Vec::new();
                self.encode_words(tokenizer, char.encode_utf8(&mut [0; 4]), &mut single)?;
                ids.extend(single.into_iter().filter(|id| self.is_textual(*id)));
            }
        }
        Ok(())
    }

    fn encode_words(&self, tokenizer: &Tokenizer, text: &str, ids: &mut Vec<u32>) -> Result<(), TextError> {
        // The regex engine panics where a text drives it to its backtracking limit; that is the text's fault alone.
        let encoded = catch_unwind(AssertUnwindSafe(|| match &self.bpe {
            Some(bpe) => {
                bpe.encode(text, ids);
                Ok(())
            }
            None => {
                let encoding = tokenizer
                    .encode_fast(text, false)
                    .map_err(|error| TextError::Encode(error.to_string()))?;
                ids.extend_from_slice(encoding.get_ids());
                Ok(())
            }
        }));
        encoded.unwrap_or_else(|_| Err(TextError::Encode("its words cannot be found".to_owned())))
    }

    /// The ids that the `tokenizers` crate gives.
    #[cfg(test)]
    pub(super) fn encode_by_crate(&self, text: &str) -> Vec<u32> {
        self.tokenizer.encode_fast(text, false).unwrap().get_ids().to_vec()
    }

    #[cfg(test)]
    pub(super) fn is_fast(&self) -> bool {
        self.bpe.is_some()
    }

    /// Whether ordinary text may give this token.
    fn is_textual(&self, id: u32) -> bool {
        !self.table.is_special(id) || self.unknown == Some(id)
    }
}

/// Text without the marker characters.
fn without(text: &str, marker: Option<char>) -> Cow<'_, str> {
    match marker {
        Some(marker) if text.contains(marker) => Cow::Owned(text.replace(marker, "")),
        _ => Cow::Borrowed(text),
    }
}

/// The tokenizer for text inside a prompt, where it differs: Metaspace with the scheme `first` puts a space before the
/// start of a text only, and what follows a control token is not the start.
fn inner_variant(json: &serde_json::Value) -> Option<serde_json::Value> {
    fn visit(component: &mut serde_json::Value) -> bool {
        let mut changed = false;
        if component["type"] == "Metaspace" && component["prepend_scheme"] == "first" {
            component["prepend_scheme"] = "never".into();
            changed = true;
        }
        if let Some(parts) = component.get_mut("pretokenizers").and_then(serde_json::Value::as_array_mut) {
            for part in parts {
                changed |= visit(part);
            }
        }
        changed
    }
    if !json["pre_tokenizer"].is_object() {
        return None;
    }
    let mut json = json.clone();
    visit(&mut json["pre_tokenizer"]).then_some(json)
}
