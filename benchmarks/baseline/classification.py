"""Sequence-pair classification without a trainer, as scripts for `accelerate launch` are usually written.

    DS_ACCELERATOR=cpu accelerate launch --config_file deepspeed_zero2.yaml classification.py --model DIR \
        --train_file train.jsonl --validation_file validation.jsonl --figures figures.json
"""

import argparse
import time

import torch
from common import Figures, build_accelerator, build_optimizer, build_schedule
from datasets import load_dataset
from sklearn.metrics import accuracy_score, f1_score
from torch.utils.data import DataLoader
from transformers import AutoModelForSequenceClassification, AutoTokenizer, DataCollatorWithPadding, set_seed


def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--train_file", required=True)
    parser.add_argument("--validation_file", required=True)
    parser.add_argument("--figures", required=True)
    parser.add_argument("--labels", nargs="*", help="class names; none: the labels are class ids")
    parser.add_argument("--max_length", type=int, default=128)
    parser.add_argument("--batch_size", type=int, default=16)
    parser.add_argument("--eval_batch_size", type=int, default=64)
    parser.add_argument("--learning_rate", type=float, default=5e-5)
    parser.add_argument("--weight_decay", type=float, default=0.01)
    parser.add_argument("--warmup_steps", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--max_steps", type=int)
    parser.add_argument("--max_train_rows", type=int)
    parser.add_argument("--seed", type=int, default=42)
    return parser.parse_args()


def main():
    args = parse_args()
    accelerator = build_accelerator()
    figures = Figures(accelerator, args.figures)
    set_seed(args.seed)

    raw = load_dataset("json", data_files={"train": args.train_file, "validation": args.validation_file})
    if args.max_train_rows:
        raw["train"] = raw["train"].select(range(args.max_train_rows))
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    model = AutoModelForSequenceClassification.from_pretrained(args.model, num_labels=2)

    def preprocess(examples):
        result = tokenizer(examples["sentence1"], examples["sentence2"], max_length=args.max_length, truncation=True)
        result["labels"] = [args.labels.index(label) if args.labels else label for label in examples["label"]]
        return result

    with accelerator.main_process_first():
        data = raw.map(
            preprocess, batched=True, remove_columns=raw["train"].column_names, desc="Running tokenizer on dataset"
        )

    collate = DataCollatorWithPadding(tokenizer)
    train_loader = DataLoader(data["train"], shuffle=True, collate_fn=collate, batch_size=args.batch_size)
    eval_loader = DataLoader(data["validation"], collate_fn=collate, batch_size=args.eval_batch_size)
    optimizer = build_optimizer(model, args.learning_rate, args.weight_decay)
    steps_an_epoch = -(-len(train_loader) // accelerator.num_processes)
    total = min(args.epochs * steps_an_epoch, args.max_steps or 10**9)
    schedule = build_schedule(accelerator, optimizer, total, args.warmup_steps)
    model, optimizer, train_loader, eval_loader, schedule = accelerator.prepare(
        model, optimizer, train_loader, eval_loader, schedule
    )

    done = 0
    for _ in range(args.epochs):
        model.train()
        began = time.monotonic()
        for batch in train_loader:
            loss = model(**batch).loss
            accelerator.backward(loss)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            figures.step_done()
            done += 1
            figures.values["samples"] += args.batch_size * accelerator.num_processes
            if done >= total:
                break
        figures.values["train_seconds"] += time.monotonic() - began
        if done >= total:
            break
    metrics, eval_seconds = evaluate(accelerator, model, eval_loader)
    figures.values["samples"] = min(
        figures.values["samples"], args.epochs * len(data["train"])
    )  # the last batches are smaller
    figures.write(metrics=metrics, eval_seconds=eval_seconds, optimizer_steps=done)
    accelerator.end_training()


def evaluate(accelerator, model, loader):
    began = time.monotonic()
    model.eval()
    predictions, references = [], []
    for batch in loader:
        with torch.no_grad():
            outputs = model(**batch)
        found, expected = accelerator.gather_for_metrics((outputs.logits.argmax(dim=-1), batch["labels"]))
        predictions += found.tolist()
        references += expected.tolist()
    metrics = {
        "accuracy": float(accuracy_score(references, predictions)),
        "f1": float(f1_score(references, predictions)),
        "rows": len(references),
    }
    return metrics, time.monotonic() - began


if __name__ == "__main__":
    main()
