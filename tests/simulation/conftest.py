"""Fixtures of this folder."""

from helpers.records import digits_record as digits_record
from helpers.runs import shared_cache as shared_cache
