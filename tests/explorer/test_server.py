"""The page's server: streams, limits, tokens, visitors who leave."""

import http.client
import json
import subprocess
import sys
import threading
import time

import pytest

from recurtrace.errors import RecurTraceError
from recurtrace.explorer.server import LARGEST_BODY, About, make_app
from recurtrace.records import LoopTrace
from tests.explorer.conftest import LOOPS, SAMPLES, call, serving

QUESTION = {"model": "looped", "prompt": "Where?", "max_loops": LOOPS}


def events(port, **changes):
    status, text, _ = call(port, "/api/trace", {**QUESTION, **changes})
    assert status == 200, text
    return [json.loads(line) for line in text.splitlines()]


def begin(port, **changes):
    """A question whose answer is not waited for; gives the connection after the first line."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    body = json.dumps({**QUESTION, **changes})
    connection.request("POST", "/api/trace", body, {"content-type": "application/json"})
    answer = connection.getresponse()
    return connection, answer, json.loads(answer.readline())


def until(condition):
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_question_is_told_loop_by_loop_and_ends_in_a_trace(app, made_trace):
    with serving(app) as port:
        *loops, last = events(port, memory_off_from=3)
    assert [event["event"] for event in loops] == ["loop"] * LOOPS
    assert [event["answer"] for event in loops] == [loop.answer for loop in made_trace.loops]
    found = LoopTrace.from_json(last["trace"])
    assert found.prompt == "Where?"
    assert found.memory_off_from == 3
    assert found.loops == made_trace.loops


def test_the_page_its_parts_and_what_it_must_know(app):
    with serving(app) as port:
        status, page, headers = call(port, "/")
        assert status == 200
        assert "Trace explorer" in page
        assert "http" not in page.replace("http://www.w3.org", "")  # nothing from elsewhere
        assert headers["content-security-policy"].startswith("default-src 'self'")
        assert call(port, "/static/app.js")[0] == 200
        _, about, _ = call(port, "/api/about")
        assert about["models"] == ["looped", "other"]
        assert about["samples"][0]["reference"] == SAMPLES[0].reference
        assert call(port, "/api/turning")[1][0]["level"] == "more loops turn it wrong"


@pytest.mark.parametrize(
    ("body", "status", "why"),
    [
        ("{", 422, "the question is malformed"),
        ({"model": "looped"}, 422, "prompt: field required"),
        ({**QUESTION, "prompt": ""}, 422, "prompt: string should have at least 1 character"),
        ({**QUESTION, "max_loops": 0}, 422, "max_loops: input should be greater than or equal to 1"),
        ({**QUESTION, "max_loops": 33}, 422, "max_loops is at most 32 here, got 33"),
        ({**QUESTION, "memory_off_from": 1}, 422, "memory_off_from: input should be greater"),
        ({**QUESTION, "model": "/etc"}, 422, "no model '/etc' here; choose looped or other"),
        ({**QUESTION, "depth": 3}, 422, "depth: extra inputs are not permitted"),
        ({**QUESTION, "prompt": "x" * LARGEST_BODY}, 413, "bytes, more than 65,536; shorten it"),
    ],
)
def test_a_malformed_question_gets_a_sentence(app, body, status, why):
    with serving(app) as port:
        got, said, _ = call(port, "/api/trace", body)
    assert got == status
    assert why in said["message"]


def test_what_the_model_refuses_is_told():
    def refuse(question, progress):
        raise RecurTraceError("the prompt has 900 tokens, more than 512; shorten it.")

    with serving(make_app(About(["looped"], [], 32, 512), refuse)) as port:
        assert events(port) == [{"event": "error", "message": "the prompt has 900 tokens, more than 512; shorten it."}]


def test_a_run_that_fails_does_not_stop_the_server(tracing):
    def fail(question, progress):
        if question.prompt == "fail":
            raise ZeroDivisionError
        return tracing(question, progress)

    with serving(make_app(About(["looped"], [], 32, 512), fail)) as port:
        with pytest.raises(http.client.IncompleteRead):
            events(port, prompt="fail")
        assert events(port)[-1]["event"] == "trace"


def test_a_visitor_who_leaves_ends_the_run(app, tracing):
    tracing.gate.clear()
    with serving(app) as port:
        connection, answer, _ = begin(port)
        answer.close()
        connection.close()
        time.sleep(0.1)  # for the server to notice
        tracing.gate.set()
        until(lambda: tracing.ended)
        assert tracing.ended[0][1] < LOOPS
        until(lambda: app.state.runs.active == 0)
        assert events(port)[-1]["event"] == "trace"


def test_one_runs_one_waits_the_third_is_refused(app, tracing):
    tracing.gate.clear()
    with serving(app) as port:
        first = begin(port, prompt="first")
        second = begin(port, prompt="second")
        assert second[2] == {"event": "waiting", "before": 1}
        status, said, _ = call(port, "/api/trace", QUESTION)
        assert status == 429
        assert "try again" in said["message"]
        assert call(port, "/api/about")[0] == 200  # the page itself is served meanwhile
        tracing.gate.set()
        for prompt, (connection, answer, _) in {"first": first, "second": second}.items():
            assert json.loads(answer.read().splitlines()[-1])["trace"]["prompt"] == prompt
            connection.close()
    assert tracing.most == 1


def test_a_search_for_examples_is_counted_and_lets_questions_pass(tracing):
    """Two steps of a search, each held until told: a question asked during the first runs before the second."""
    began, go, order = threading.Event(), threading.Event(), []

    def search():
        for step in range(2):
            began.set()
            go.wait(20)
            order.append(f"step {step}")
            yield SAMPLES[:step]

    def answer(question, progress):
        order.append("question")
        return tracing(question, progress)

    with serving(make_app(About(["looped"], SAMPLES, 32, 512), answer, search)) as port:
        visitor = threading.Thread(target=call, args=(port, "/api/turning"))
        visitor.start()
        began.wait(20)
        connection, streamed, first = begin(port)
        assert first == {"event": "waiting", "before": 1}
        go.set()
        assert json.loads(streamed.read().splitlines()[-1])["event"] == "trace"
        connection.close()
        visitor.join()
    assert order == ["step 0", "question", "step 1"]


def test_a_token_is_asked_for(tracing):
    app = make_app(About(["looped"], [], 32, 512), tracing, token="open-sesame")
    with serving(app) as port:
        for path in ("/", "/static/app.js", "/api/about", "/?token=wrong"):
            status, said, _ = call(port, path)
            assert status == 401
            assert "needs the token" in said["message"]
        assert call(port, "/api/about", authorization="Bearer open-sesame")[0] == 200
        status, _, headers = call(port, "/?token=open-sesame")
        assert status == 200
        cookie = headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert call(port, "/api/about", cookie=cookie.split(";")[0])[0] == 200
        assert call(port, "/api/about", cookie=cookie.split(";")[0], host="anything.example")[0] == 200


def test_without_a_token_only_this_machine_is_answered(app):
    with serving(app) as port:
        assert call(port, "/", host="elsewhere.example")[0] == 400


def test_two_visitors_get_their_own_traces_from_one_model(tmp_path):
    """The real thing: a model in a folder, two questions at once, each as if it had been alone."""
    from recurtrace import stages
    from tests.conftest import byte_tokenizer, tiny_looped

    tokenizer = byte_tokenizer()
    tiny_looped(vocab_size=len(tokenizer)).save_pretrained(tmp_path / "looped", merge_base=True)
    tokenizer.save_pretrained(tmp_path / "looped")
    name = str(tmp_path / "looped")
    asked = [{"prompt": "Ball is in Box"}, {"prompt": "Who has it?", "memory_off_from": 3, "reference": "Ida"}]
    alone = [stages.trace(model=name, max_loops=4, **one) for one in asked]
    found = {}
    with serving(stages.explore(models=[name])) as port:

        def visit(i):
            found[i] = events(port, model=name, max_loops=4, **asked[i])[-1]["trace"]

        threads = [threading.Thread(target=visit, args=(i,)) for i in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        too_long = events(port, model=name, prompt="x" * 600)
    assert [LoopTrace.from_json(found[i]) for i in range(2)] == alone
    assert too_long == [{"event": "error", "message": "the prompt has 600 tokens, more than 248; shorten it."}]


def test_the_server_does_without_torch():
    code = (
        "import sys; sys.argv[0] = 'recurtrace'; import recurtrace.explorer.server; assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
