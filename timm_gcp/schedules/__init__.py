"""The paper's learning-rate schedules (Table 3)."""
