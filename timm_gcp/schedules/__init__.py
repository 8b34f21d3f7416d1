"""The paper's learning-rate schedules (Table 3), and the way to add your own."""

from timm_gcp.schedules.spec import register_schedule

__all__ = ["register_schedule"]
