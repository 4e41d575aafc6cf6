import gzip
import importlib.util
import json
from pathlib import Path

import pytest

from closecall import demo
from closecall.errors import ConfigError

SQS = {
    "SendMessage": {"name": "SendMessage", "documentation": "<p>Delivers a message.</p>"},
    "ListQueues": {"name": "ListQueues", "documentation": "<p>Your queues.</p><note>At most &lt;1000&gt;.</note>"},
    "PurgeQueue": {"name": "PurgeQueue"},
}
S3 = {"PutBucketTagging2020": {"name": "PutBucketTagging", "documentation": "Sets the <code>tags</code>."}}

SEND_MESSAGE = """\
**To send a message**

This example sends one. ::

    aws sqs send-message

Output::

    {"note": "**not a heading**"}

**Example 2: To send a message with a delay**

**To send a message**

**Note:** A delay is at most 900 seconds.

**Output:**
"""


@pytest.fixture
def models(tmp_path):
    write_model(tmp_path / "models/sqs/2012-11-05/service-2.json.gz", SQS)
    write_model(tmp_path / "models/s3/2006-03-01/service-2.json", S3)
    write_model(tmp_path / "models/bedrock/2023-04-20/service-2.json", {})
    return tmp_path / "models"


@pytest.fixture
def examples(tmp_path):
    texts = {
        "sqs/send-message": SEND_MESSAGE,
        "sqs/list-queues": "The following command lists your queues::\n",
        "sqs/_concepts": "**To explain queues**\n",
        "sqs/wait/queue-exists": "**To wait for a queue**\n",
        "s3/cp": "**To copy a file**\n",
        "s3api/put-bucket-tagging2020": "**To set ``tags``**\n",
        "configure/get": "**To read a setting**\n",
    }
    for name, text in texts.items():
        path = tmp_path / "examples" / f"{name}.rst"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return tmp_path / "examples"


def write_model(path: Path, operations):
    path.parent.mkdir(parents=True, exist_ok=True)
    data = json.dumps({"operations": operations}).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)


def rows(path: Path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize(
    ("rst", "tasks"),
    [
        ("**To create an access key for an IAM user**", ["create an access key for an IAM user"]),
        ("**Example 1: To launch an instance**\n", ["launch an instance"]),
        ("**Example 2:To add a CIDR block**", ["add a CIDR block"]),
        ("**Example1: To list fleets**", ["list fleets"]),
        ("**Example 1. To update an add-on**", ["update an add-on"]),
        ("**Example: To get a member**", ["get a member"]),
        ("**Example 2:** To share privately", ["share privately"]),
        ("**1. To add tags to a cluster**", ["add tags to a cluster"]),
        ("*Example 1: *To start a task**", ["start a task"]),
        ("**To list the tags of an alarm***", ["list the tags of an alarm"]),
        ("**[EC2-VPC] To delete a security group**", ["delete a security group"]),
        ("**To  list two  spaces.** ", ["list two spaces"]),
        ("**To send it:**", ["send it"]),
        ("**To send it**::", ["send it"]),
        ("**Delete an EKS cluster**", ["Delete an EKS cluster"]),
        ("**To IAM**", ["IAM"]),
        ("Create a Cluster\n----------------\n\nThis makes one.", ["Create a Cluster"]),
        ("**To use ``--query``, *stress* and `a link <https://a.example>`__**", ["use --query, stress and a link"]),
        ("**To map to '*'**", ["map to '*'"]),
        ("**To update using shorthand syntax**", ["update using shorthand syntax"]),
        ("    **To be inside an output**", []),
        ("To complete this request:", []),
        ("The **bold** word is in **here**", []),
    ],
)
def test_each_form_of_heading_gives_the_task_it_names(rst, tasks):
    assert demo.tasks(rst)[0] == tasks


@pytest.mark.parametrize(
    "heading", ["Note: only on AMI 2.x", "Output:", "title", "Example 1", "Weighted Alias Syntax", "Windows version"]
)
def test_a_label_is_no_task_and_is_counted(heading):
    assert demo.tasks(f"**{heading}**") == ([], {"no_heading": 0, "no_task": 1, "repeated": 0})


def test_a_heading_repeated_in_a_file_is_one_query_and_is_counted():
    assert demo.tasks("**To stop**\n\n**Example 2: To stop**\n") == (
        ["stop"],
        {"no_heading": 0, "no_task": 0, "repeated": 1},
    )


@pytest.mark.parametrize(
    ("html", "text"),
    [
        ("<p>One</p><p>two.</p>", "One two."),
        ("<ul> <li> <p>a</p> </li><li>b</li></ul>", "a b"),
        (
            "Set <code>Tags</code>, <b>un</b>less &lt;empty&gt; &amp; &#150; old",
            "Set Tags, unless <empty> & \u2013 old",
        ),
        ('See <a href="https://a.example">the\n   guide</a>.', "See the guide."),
        ("one<br/>two&#x2028;three", "one two three"),
        ("", ""),
    ],
)
def test_documentation_becomes_one_line_of_text_in_which_only_blocks_part_words(html, text):
    assert demo.plain_text(html) == text


def test_the_dataset_holds_every_operation_and_every_task_with_its_operation(models, examples, tmp_path):
    built = demo.build_from(models, examples, tmp_path / "out", None, ("awscli 1 (Apache-2.0)",))

    assert rows(built.folder / "corpus.jsonl") == [
        {
            "_id": "s3/put-bucket-tagging2020",
            "title": "PutBucketTagging2020",
            "text": "Sets the tags.",
            "service": "s3",
        },
        {"_id": "sqs/list-queues", "title": "ListQueues", "text": "Your queues. At most <1000>.", "service": "sqs"},
        {"_id": "sqs/purge-queue", "title": "PurgeQueue", "text": "Purge Queue", "service": "sqs"},
        {"_id": "sqs/send-message", "title": "SendMessage", "text": "Delivers a message.", "service": "sqs"},
    ]
    send = {"service": "sqs", "operation": "sqs/send-message"}
    assert rows(built.folder / "queries.jsonl") == [
        {
            "_id": "s3/put-bucket-tagging2020#1",
            "text": "set tags",
            "service": "s3",
            "operation": "s3/put-bucket-tagging2020",
        },
        {"_id": "sqs/send-message#1", "text": "send a message", **send},
        {"_id": "sqs/send-message#2", "text": "send a message with a delay", **send},
    ]
    assert (built.folder / "qrels.tsv").read_text(encoding="utf-8") == (
        "query-id\tcorpus-id\tscore\n"
        "s3/put-bucket-tagging2020#1\ts3/put-bucket-tagging2020\t1\n"
        "sqs/send-message#1\tsqs/send-message\t1\n"
        "sqs/send-message#2\tsqs/send-message\t1\n"
    )
    assert (built.documents, built.queries, built.services, built.undocumented) == (4, 3, ("s3", "sqs"), 1)
    assert built.sources == ("awscli 1 (Apache-2.0)",)


def test_whatever_gave_no_query_is_counted_by_its_reason(models, examples, tmp_path):
    built = demo.build_from(models, examples, tmp_path / "out", ["sqs"])

    assert built.skipped == {
        "no_heading": 1,  # list-queues
        "no_operation": 1,  # _concepts
        "no_task": 1,  # **Output:**
        "other_service": 3,  # s3/cp, s3api/put-bucket-tagging2020, configure/get
        "repeated": 1,
        "subfolder": 1,  # wait/queue-exists
    }


def test_only_the_operations_of_the_chosen_services_are_the_corpus(models, examples, tmp_path):
    built = demo.build_from(models, examples, tmp_path / "out", ["s3", "s3"])

    assert (built.services, built.documents, built.queries) == (("s3",), 1, 1)


def test_the_latest_api_version_of_a_service_is_used(models):
    write_model(models / "sqs/2020-01-01/service-2.json", S3)

    assert [document.title for document in demo.service_documents(models / "sqs")] == ["PutBucketTagging2020"]


def test_two_builds_are_byte_identical_and_leave_no_other_file(models, examples, tmp_path):
    first, second = (demo.build_from(models, examples, tmp_path / name, None).folder for name in ("one", "two"))

    assert sorted(path.name for path in first.iterdir()) == ["corpus.jsonl", "qrels.tsv", "queries.jsonl"]
    for path in first.iterdir():
        assert path.read_bytes() == (second / path.name).read_bytes()


@pytest.mark.parametrize(
    ("folder", "service"), [("s3api", "s3"), ("deploy", "codedeploy"), ("configservice", "config"), ("iam", "iam")]
)
def test_a_folder_of_examples_is_mapped_to_the_name_of_its_service(folder, service):
    assert demo.service_of(Path("examples") / folder) == service


def test_services_without_a_model_or_without_examples_are_not_offered(models, examples):
    assert demo.services_with_examples(models, examples) == ["s3", "sqs"]


def test_an_unknown_service_is_named_with_the_nearest_known_one_and_how_to_list_them():
    with pytest.raises(ConfigError) as caught:
        demo.choose_services(["sqqs", "s3api", "iam"], ["iam", "s3", "sqs"])

    lists = "closecall.demo.available_services() lists them"
    assert str(caught.value).splitlines() == [
        "services: 2 faults",
        f"  - services: 's3api' is not one of the 3 services that have examples; did you mean 's3'? {lists}",
        f"  - services: 'sqqs' is not one of the 3 services that have examples; did you mean 'sqs'? {lists}",
    ]


def test_an_empty_list_of_services_is_refused():
    with pytest.raises(ConfigError, match="services: the list is empty; name at least one service"):
        demo.choose_services([], ["iam"])


def test_a_missing_package_is_named_with_the_command_that_installs_it(monkeypatch, tmp_path):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)

    with pytest.raises(ConfigError, match=r'package botocore, .* not installed; .*: pip install "closecall\[demo\]"'):
        demo.build_demo_dataset(tmp_path, None)


def test_every_judgment_of_a_real_service_points_to_a_document_and_a_query(tmp_path):
    built = demo.build_demo_dataset(tmp_path / "sqs", ["sqs"])

    documents = {row["_id"]: row for row in rows(built.folder / "corpus.jsonl")}
    queries = {row["_id"]: row for row in rows(built.folder / "queries.jsonl")}
    header, *lines = (built.folder / "qrels.tsv").read_text(encoding="utf-8").splitlines()
    judgments = [line.split("\t") for line in lines]
    assert header == "query-id\tcorpus-id\tscore"
    assert {query_id for query_id, _, _ in judgments} == set(queries)
    assert all(doc_id == queries[query_id]["operation"] for query_id, doc_id, _ in judgments)
    assert {doc_id for _, doc_id, _ in judgments} <= set(documents)
    assert queries["sqs/send-message#1"]["text"] == "send a message"
    assert documents["sqs/send-message"]["text"].startswith("Delivers a message to the specified queue.")
    assert (len(documents), len(queries)) == (built.documents, built.queries)
    assert [source.split()[0] for source in built.sources] == ["awscli", "botocore"]


def test_every_service_of_the_demo_has_examples():
    assert set(demo.DEMO_SERVICES) <= set(demo.available_services())
