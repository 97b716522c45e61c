"""Checkpoint folders: names, checksums, what is kept, what a resume may change. Only `writing`, for ranks, imports
torch.

RUN_DIR/checkpoints/step_00000012/            complete: it has its manifest
RUN_DIR/checkpoints/step_00000012_evaluated/  the same step, after the evaluation at the end of its epoch
RUN_DIR/checkpoints/.step_00000012.partial/   being written, or torn by a kill
RUN_DIR/checkpoints/damaged_step_00000012/    set aside by a resume
"""
