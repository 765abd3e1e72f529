//! A request as it is submitted.

use policies::request::{Prop, RequestSpec, ResumedChoice, Sampling};
use policies::time::Time;

use super::{form_enum, form_struct};

form_struct!(RequestSpec {
    id,
    attempt,
    model,
    prompt,
    hashes,
    resumed,
    max_tokens,
    end_tokens,
    ignore_end,
    sampling,
    prompt_logprobs,
    props,
    credit,
    session,
    tenant,
    weight,
} not sent {
    // The envelope carries it.
    deadline: Time::NEVER
});

form_struct!(ResumedChoice { tokens, ended, unread });

form_struct!(Sampling {
    temperature,
    top_p,
    top_k,
    min_p,
    repetition_penalty,
    presence_penalty,
    frequency_penalty,
    logit_bias,
    seed,
    logprobs,
});

form_enum!(Prop { 0 => Int(value), 1 => Float(value), 2 => Bool(value), 3 => Text(value), 4 => Duration(value) });
