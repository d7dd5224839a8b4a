"""Fixtures of this folder."""

from helpers.models import patches as patches
from helpers.records import digits_record as digits_record
