"""Measuring looped models."""
