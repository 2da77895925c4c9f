"""Statistics, figures and reports of finished runs."""
