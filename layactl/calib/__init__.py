"""What are a model's probabilities worth? Labelled data -> raw logits -> fit -> quality -> thresholds -> report."""
