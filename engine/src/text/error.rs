//! What can go wrong with text.

/// A tokenizer or template that cannot be built or used. Errors of start-up name the file or key.
#[derive(Debug, thiserror::Error)]
pub enum TextError {
    /// Model metadata lacks or garbles something; the message names file and key.
    #[error(transparent)]
    Model(#[from] crate::gguf::GgufError),
    /// A file of a Hugging Face directory cannot be read.
    #[error("cannot read `{}`: {what}", path.display())]
    File {
        /// The file.
        path: std::path::PathBuf,
        /// The reason.
        what: String,
    },
    /// The tokenizer cannot be built.
    #[error("the tokenizer of {origin} cannot be used: {what}")]
    Tokenizer {
        /// The file it came from.
        origin: String,
        /// The reason.
        what: String,
    },
    /// Encoding failed.
    #[error("the text cannot be tokenized: {0}")]
    Encode(String),
}

/// A chat that cannot be turned into a prompt. Every variant is the client's to mend (HTTP 400, `param` is
/// `messages`), and the text is fit to be shown.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ChatError {
    /// The model has no chat template and the configuration gives none.
    #[error(
        "this model has no chat template; use /v1/completions, or start the node with a template in `model.chat-template`"
    )]
    NoTemplate,
    /// The template does not compile; also logged as a warning at start.
    #[error("the model's chat template is not valid: {0}")]
    BadTemplate(String),
    /// The template called `raise_exception`.
    #[error("the model's chat template refuses these messages: {0}")]
    Refused(String),
    /// The template failed while rendering.
    #[error("the model's chat template failed on these messages: {0}")]
    Failed(String),
    /// No messages at all.
    #[error("`messages` is empty; give at least one message")]
    Empty,
    /// A role that chat does not know.
    #[error("messages[{index}].role: `{role}` is not known; use system, developer, user or assistant")]
    UnknownRole {
        /// Which message, from 0.
        index: usize,
        /// What it said.
        role: String,
    },
    /// A content part that is not text.
    #[error("messages[{index}].content[{part}]: `{kind}` parts are not supported by this model; use `text`")]
    UnsupportedPart {
        /// Which message, from 0.
        index: usize,
        /// Which part, from 0.
        part: usize,
        /// Its type.
        kind: String,
    },
    /// Content is absent or null.
    #[error("messages[{index}].content: null is not supported; give a string or a list of text parts")]
    NoContent {
        /// Which message, from 0.
        index: usize,
    },
    /// Tokenizing the rendered prompt failed.
    #[error("the rendered messages cannot be tokenized: {0}")]
    Encode(String),
}
