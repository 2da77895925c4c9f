"""What finished runs show: statistics over seeds and settings, and the tables and figures made from them."""
