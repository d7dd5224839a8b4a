"""Fixtures of this folder."""

from helpers.records import digits_record as digits_record
