"""What a task is: targets, loss, metrics and ranking."""
