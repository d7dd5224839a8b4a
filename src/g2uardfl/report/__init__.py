"""Plots and pages made from run directories."""
