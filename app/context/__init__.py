"""What the model should see."""
