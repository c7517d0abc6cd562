"""What is looked at: pure functions that read something off a network."""

from krogh.probes.basic import accuracy, hinge_error, parameter_norm, probe, train_accuracy
from krogh.probes.features import coordinate_movement, relevant_on_top, weight_movement, weights
from krogh.probes.fourier import fourier_gap, fourier_gap_exact
from krogh.probes.margins import NormalisedMargin, neuron_norms
from krogh.probes.spectra import IrrepPower, frequencies

__all__ = [
    "IrrepPower",
    "NormalisedMargin",
    "accuracy",
    "coordinate_movement",
    "fourier_gap",
    "fourier_gap_exact",
    "frequencies",
    "hinge_error",
    "neuron_norms",
    "parameter_norm",
    "probe",
    "relevant_on_top",
    "train_accuracy",
    "weight_movement",
    "weights",
]
