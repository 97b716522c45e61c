"""Evaluation of a sequence-to-sequence model by generation and corpus BLEU, as scripts for `accelerate launch` do it.

    DS_ACCELERATOR=cpu accelerate launch --config_file deepspeed_zero2.yaml seq2seq.py --model DIR \
        --validation_file validation.jsonl --figures figures.json
"""

import argparse
import time

import sacrebleu
import torch
from common import Figures, build_accelerator, build_optimizer
from datasets import load_dataset
from torch.utils.data import DataLoader
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, DataCollatorForSeq2Seq


def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--validation_file", required=True)
    parser.add_argument("--figures", required=True)
    parser.add_argument("--source_prefix", default="chatbot: ")
    parser.add_argument("--max_source_length", type=int, default=96)
    parser.add_argument("--max_target_length", type=int, default=32)
    parser.add_argument("--eval_batch_size", type=int, default=50)
    parser.add_argument("--num_beams", type=int, default=3)
    parser.add_argument("--min_length", type=int, default=0)
    parser.add_argument("--max_length", type=int, default=32)
    parser.add_argument("--no_repeat_ngram_size", type=int, default=3)
    parser.add_argument("--repetition_penalty", type=float, default=1.2)
    return parser.parse_args()


def main():
    args = parse_args()
    accelerator = build_accelerator()
    figures = Figures(accelerator, args.figures)
    raw = load_dataset("json", data_files={"validation": args.validation_file})
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    model = AutoModelForSeq2SeqLM.from_pretrained(args.model)

    def preprocess(examples):
        # The bundled dialogues are short enough to be kept whole.
        sources = [
            args.source_prefix + " </s> <s> ".join(turns) if isinstance(turns, list) else args.source_prefix + turns
            for turns in examples["texts"]
        ]
        inputs = tokenizer(sources, max_length=args.max_source_length, truncation=True)
        inputs["labels"] = tokenizer(
            text_target=examples["labels"], max_length=args.max_target_length, truncation=True
        )["input_ids"]
        return inputs

    with accelerator.main_process_first():
        data = raw.map(
            preprocess, batched=True, remove_columns=raw["validation"].column_names, desc="Running tokenizer on dataset"
        )

    collate = DataCollatorForSeq2Seq(tokenizer, model=model, label_pad_token_id=-100)
    loader = DataLoader(data["validation"], collate_fn=collate, batch_size=args.eval_batch_size)
    model, _, loader = accelerator.prepare(model, build_optimizer(model, 1e-3, 0.01), loader)

    began = time.monotonic()
    model.eval()
    settings = {
        name: getattr(args, name)
        for name in ("num_beams", "min_length", "max_length", "no_repeat_ngram_size", "repetition_penalty")
    }
    predictions, references = [], []
    for batch in loader:
        with torch.no_grad():
            tokens = accelerator.unwrap_model(model).generate(
                batch["input_ids"], attention_mask=batch["attention_mask"], **settings
            )
        tokens = accelerator.pad_across_processes(tokens, dim=1, pad_index=tokenizer.pad_token_id)
        labels = accelerator.pad_across_processes(batch["labels"], dim=1, pad_index=tokenizer.pad_token_id)
        tokens, labels = accelerator.gather_for_metrics((tokens, labels))
        labels = torch.where(labels != -100, labels, tokenizer.pad_token_id)
        predictions += [" ".join(text.split()) for text in tokenizer.batch_decode(tokens, skip_special_tokens=True)]
        references += [" ".join(text.split()) for text in tokenizer.batch_decode(labels, skip_special_tokens=True)]
    bleu = sacrebleu.corpus_bleu(predictions, [references]).score
    seconds = time.monotonic() - began
    figures.write(metrics={"bleu": bleu, "rows": len(references)}, eval_seconds=seconds, predictions=predictions)
    accelerator.end_training()


if __name__ == "__main__":
    main()
