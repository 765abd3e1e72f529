"""Drives a node with the official OpenAI client: python3 check.py http://HOST:PORT"""

import sys

import openai

BASE = sys.argv[1]
client = openai.OpenAI(base_url=f"{BASE}/v1", api_key="unused", max_retries=0, timeout=120)
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]


def chat(**fields):
    request = {"model": "default", "messages": QUESTION, "temperature": 0, "max_tokens": 24, "seed": 7}
    return client.chat.completions.create(**{**request, **fields})


def complete(**fields):
    request = {"model": "default", "prompt": "Once upon a time", "temperature": 0, "max_tokens": 12, "seed": 7}
    return client.completions.create(**{**request, **fields})


def raises(kind, status, call, param=None, code=None):
    try:
        call()
    except kind as error:
        assert error.status_code == status, error
        body = error.body if isinstance(error.body, dict) else {}
        assert body.get("message"), error
        assert param is None or body.get("param") == param, error
        assert code is None or body.get("code") == code, error
        assert error.response.headers["x-request-id"], error
        return
    raise AssertionError(f"no {kind.__name__}")


def models():
    listed = client.models.list().data
    assert len(listed) == 1 and listed[0].object == "model", listed
    assert client.models.retrieve(listed[0].id).id == listed[0].id
    assert chat(model=listed[0].id).model == listed[0].id
    raises(openai.NotFoundError, 404, lambda: client.models.retrieve("no-such"), code="model_not_found")


def chats():
    answer = chat()
    choice = answer.choices[0]
    assert "Paris" in choice.message.content, answer
    assert choice.message.role == "assistant" and choice.finish_reason == "stop", answer
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert answer.id and answer.object == "chat.completion" and answer._request_id
    parts = chat(messages=[{"role": "user", "content": [{"type": "text", "text": QUESTION[0]["content"]}]}])
    assert parts.choices[0].message.content == choice.message.content
    assert chat(max_tokens=2, extra_body={"props": {"priority": 1}}).choices[0].finish_reason == "length"
    assert chat(max_tokens=openai.NOT_GIVEN, max_completion_tokens=3).usage.completion_tokens == 3


def streams():
    whole = chat()
    text, finish, roles, usage = "", [], [], None
    with chat(stream=True, stream_options={"include_usage": True}) as stream:
        for chunk in stream:
            assert chunk.object == "chat.completion.chunk"
            if chunk.usage:
                assert not chunk.choices
                usage = chunk.usage
                continue
            delta = chunk.choices[0].delta
            roles += [delta.role] if delta.role else []
            text += delta.content or ""
            finish += [chunk.choices[0].finish_reason] if chunk.choices[0].finish_reason else []
    assert text == whole.choices[0].message.content and finish == ["stop"] and roles == ["assistant"]
    assert usage.completion_tokens == whole.usage.completion_tokens
    pieces = "".join(chunk.choices[0].text for chunk in complete(stream=True))
    assert pieces == complete().choices[0].text


def several():
    answer = chat(n=2, temperature=1, max_tokens=16)
    assert [choice.index for choice in answer.choices] == [0, 1]
    assert answer.choices[0].message.content != answer.choices[1].message.content
    assert answer.to_dict()["choices"] == chat(n=2, temperature=1, max_tokens=16).to_dict()["choices"]
    prompts = complete(prompt=["Once upon a time", "The sea is"])
    assert [choice.index for choice in prompts.choices] == [0, 1]
    assert prompts.choices[0].text == complete().choices[0].text


def logprobs():
    content = chat(logprobs=True, top_logprobs=3).choices[0].logprobs.content
    for token in content:
        assert len(token.top_logprobs) == 3 and token.logprob <= 0
        assert token.top_logprobs[0].token == token.token, "greedy takes the likeliest"
        assert bytes(token.bytes).decode() == token.token
    legacy = complete(logprobs=2, echo=True, max_tokens=4).choices[0]
    assert legacy.text.startswith("Once upon a time") and "".join(legacy.logprobs.tokens) == legacy.text
    assert legacy.logprobs.token_logprobs[0] is None
    lengths = {len(getattr(legacy.logprobs, name)) for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset")}
    assert len(lengths) == 1, lengths
    events = [chunk.choices[0].logprobs for chunk in chat(logprobs=True, stream=True)]
    streamed = [token for event in events if event for token in event.content]
    assert [token.token for token in streamed] == [token.token for token in content]


def stops():
    text = chat().choices[0].message.content
    stopped = chat(stop=["Paris"]).choices[0]
    assert stopped.message.content == text.split("Paris")[0] and stopped.finish_reason == "stop"
    streamed = "".join(chunk.choices[0].delta.content or "" for chunk in chat(stop="Paris", stream=True))
    assert streamed == stopped.message.content


def errors():
    raises(openai.NotFoundError, 404, lambda: chat(model="no-such"), "model", "model_not_found")
    raises(openai.BadRequestError, 400, lambda: chat(temperature=9), "temperature")
    raises(openai.BadRequestError, 400, lambda: chat(messages=[]), "messages")
    raises(openai.BadRequestError, 400, lambda: chat(n=0, stream=True), "n")
    raises(openai.BadRequestError, 400, lambda: chat(tools=[{"type": "function", "function": {"name": "f"}}]), "tools")
    raises(openai.BadRequestError, 400, lambda: chat(extra_body={"no_such_field": 1}), "no_such_field")
    long = [{"role": "user", "content": "word " * 5000}]
    raises(openai.BadRequestError, 400, lambda: chat(messages=long), "messages", "context_length_exceeded")
    raises(openai.BadRequestError, 400, lambda: complete(prompt=""), "prompt")
    raises(openai.NotFoundError, 404, lambda: client.embeddings.create(model="default", input="x"))
    # Answered while the client is still sending: an error of the API, and not a broken connection.
    huge = [{"role": "user", "content": "w" * (20 << 20)}]
    for _ in range(3):
        raises(openai.APIStatusError, 413, lambda: chat(messages=huge))
        assert chat(max_tokens=1).choices[0].message.content


def leaving():
    with chat(max_tokens=1000, stream=True, extra_body={"ignore_eos": True}) as stream:
        next(iter(stream))
    assert chat().choices[0].message.content


for check in (models, chats, streams, several, logprobs, stops, errors, leaving):
    check()
    print(check.__name__)
print("all checks passed")
