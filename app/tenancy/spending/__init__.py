"""Usage of chat models by tenants: counted by day, purpose and model, and limited by budgets."""
