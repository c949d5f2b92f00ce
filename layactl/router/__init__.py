"""The executor router: how likely each candidate meets the success criterion of a task.

card -> request -> state -> score: executor cards, request checks, the text and tokens a candidate becomes, the answer.
"""
