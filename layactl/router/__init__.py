"""The executor router: how likely each candidate meets the success criterion of a task.

card -> request -> state -> render -> score: executor cards, request checks, the text and tokens a candidate becomes,
the sequences a model reads, the answer.
"""
