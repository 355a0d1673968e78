"""What tenants spend on chat models, counted by day, purpose and model, and limited by budgets."""
